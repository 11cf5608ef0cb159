package sched

import (
	"slices"
	"time" //nolint:depguard // for a duration; there is no clock here
)

// MaxWeight is the largest weight of a tenant.
const MaxWeight = 1000

// virtualRow is the virtual time of one row at weight 1.
const virtualRow = 1 << 20

// flow is the service of a tenant. Its virtual time is the number of rows computed for the tenant
// over its weight. Serving the tenant with the least virtual time keeps tenants with work at the
// same virtual time (virtual token counter: Sheng et al., "Fairness in Serving Large Language
// Models", OSDI 2024; here a prompt counts when its rows are computed, so that long prompts share
// steps too).
type flow struct {
	weight  int
	served  uint64 // virtual time
	pending int    // prompt tokens of sequences that hold KV, not computed yet
	rows    int    // decode rows of the sequences that hold KV
	leased  int    // tokens with KV, of planSpill
	live    int    // sequences that the scheduler knows
	backlog int    // of them, those whose prompt is not computed
	left    Time   // when the last one was forgotten
}

// due returns the virtual time once every admitted prompt is computed: the order of
// admission. Prompts that share a step follow the order of served.
func (f *flow) due() uint64 { return f.served + f.virtual(f.pending) }

func (f *flow) virtual(rows int) uint64 { return uint64(rows) * virtualRow / uint64(f.weight) }

// remember is how long a tenant without requests counts as one who may come
// back at any moment.
const remember = time.Minute

// headroom is the part of the batch that is kept free for tenants that hold
// less than their share of it: 1/headroom.
const headroom = 4

// ShareWithOthers is the part of a batch that a tenant with its share of it may have while others may come.
func ShareWithOthers(batch int) int { return max(batch-batch/headroom, 1) }

// barred says that a tenant must wait although the batch has room: it has its share of the batch,
// by weight among the tenants of the last minute, and the remaining rows are kept for the others,
// whatever the priorities. Running sequences are never stopped, so a new tenant would wait for the
// end of an answer otherwise. A tenant with nothing in the batch is never barred. weights is the
// sum over all flows.
func (s *Scheduler) barred(f *flow, weights int) bool {
	return f.rows > 0 && s.sated(f, weights) &&
		s.running.rows+s.plannedRows >= ShareWithOthers(s.cfg.MaxBatchSize)
}

// sated says that a tenant has its share of the batch, by weight among the tenants of the
// last minute.
func (s *Scheduler) sated(f *flow, weights int) bool {
	return f.rows*weights >= s.cfg.MaxBatchSize*f.weight
}

// weights is the sum of those of the tenants of the last minute.
func (s *Scheduler) weights() (sum int) {
	for _, f := range s.flows {
		sum += f.weight
	}
	return sum
}

// giveWay skips over-share tenants in this step when an under-share tenant has a prompt ready:
// its first token would wait for their rows, which are most of a full batch's step. It skips
// tenants that are barred, unless the under-share tenant is ahead in service by a step's rows or
// they have a higher priority. Consecutive steps skip tenants for at most a chunk of prompt rows.
func (s *Scheduler) giveWay() {
	gave := s.gaveWay
	s.gaveWay = 0
	if len(s.flows) == 1 {
		return
	}
	weights := s.weights()
	i := slices.IndexFunc(s.ready, func(seq *sequence) bool { return !s.sated(seq.flow, weights) })
	if i < 0 {
		return
	}
	first := s.ready[i]
	if gave > 0 && gave+first.PromptTokens-first.computed > s.chunk() {
		return
	}
	ahead := first.flow.virtual(s.cfg.MaxBatchTokens)
	yields := func(seq *sequence) bool {
		return s.barred(seq.flow, weights) && seq.rank.priority >= first.rank.priority && first.flow.served <= seq.flow.served+ahead
	}
	before := len(s.decodes) + len(s.ready)
	s.decodes = slices.DeleteFunc(s.decodes, yields)
	s.ready = slices.DeleteFunc(s.ready, yields)
	if s.plan.Yielded = before - len(s.decodes) - len(s.ready); s.plan.Yielded > 0 {
		s.gaveWay = gave
	}
}

// join adds a sequence that was just submitted to its tenant's flow. A flow
// that had nothing to do begins level with the least served of the others: time
// spent idle is no credit.
func (s *Scheduler) join(seq *sequence) {
	f := s.flows[seq.Tenant]
	if f == nil {
		f = &flow{}
		s.flows[seq.Tenant] = f
	}
	f.weight = max(seq.Weight, 1)
	f.live++
	s.line(f)
	seq.flow = f
}

// line adds a sequence whose prompt is to be computed to a flow's backlog.
func (s *Scheduler) line(f *flow) {
	if f.backlog == 0 {
		if least, ok := s.leastServed(); ok {
			s.clock = max(s.clock, least)
		}
		f.served = max(f.served, s.clock)
	}
	f.backlog++
}

// leastServed returns the least virtual time of the flows with prompts to compute; not ok without
// any.
func (s *Scheduler) leastServed() (least uint64, ok bool) {
	for _, f := range s.flows {
		if f.backlog > 0 && (!ok || f.served < least) {
			least, ok = f.served, true
		}
	}
	return least, ok
}

// serve charges the rows of a chunk to the sequence's tenant.
func (s *Scheduler) serve(seq *sequence, rows int, prompt bool) {
	f := seq.flow
	f.served += f.virtual(rows)
	if prompt {
		f.pending -= rows
		if !seq.prefilling() {
			s.prefilled(f)
		}
	}
}

// prefilled removes a sequence from its flow's backlog.
func (s *Scheduler) prefilled(f *flow) {
	if f.backlog--; f.backlog > 0 {
		return
	}
	if _, ok := s.leastServed(); !ok { // the last one: who comes next begins here
		s.clock = max(s.clock, f.served)
	}
}

// unqueue removes a sequence that ends before its prompt is computed from the counts of its
// flow.
func (s *Scheduler) unqueue(seq *sequence) {
	if !seq.prefilling() {
		return
	}
	if seq.state == Running {
		seq.flow.pending -= seq.PromptTokens - seq.computed
	}
	s.prefilled(seq.flow)
}

// leave forgets a sequence's share in its flow, and the flows that a newcomer
// would be level with.
func (s *Scheduler) leave(seq *sequence) {
	if seq.flow.live--; seq.flow.live > 0 {
		return
	}
	seq.flow.left = s.now
	for tenant, f := range s.flows {
		if f.live == 0 && s.now-f.left > remember {
			delete(s.flows, tenant)
		}
	}
}

// nextWaiting returns the next sequence to reserve KV for: among those with the highest priority,
// a migrated one, else the first of the least-served tenant. Nil if there is none. A migrated sequence had a place in another
// worker's batch, and its reader waits for the next token: the places that are kept for new tenants are not kept from it.
func (s *Scheduler) nextWaiting() *sequence {
	alone := len(s.flows) == 1
	weights := 0
	if !alone {
		weights = s.weights()
	}
	var best *sequence
	for _, seq := range s.waiting.seqs {
		if seq.parked || seq.planned {
			continue
		}
		if alone || seq.Migrated && best == nil {
			return seq
		}
		if best != nil && seq.Priority != best.Priority {
			break
		}
		if !s.barred(seq.flow, weights) && (best == nil || seq.flow.due() < best.flow.due()) {
			best = seq
		}
	}
	return best
}

// takePrompt removes from ready, which is in the order of service, the prompt
// that gets the next rows: among those with the highest priority, the first of
// the least-served tenant.
func (s *Scheduler) takePrompt() *sequence {
	best := 0
	if len(s.flows) > 1 {
		for i, seq := range s.ready {
			if seq.rank.priority != s.ready[0].rank.priority {
				break
			}
			if seq.flow.served < s.ready[best].flow.served {
				best = i
			}
		}
	}
	seq := s.ready[best]
	s.ready = append(s.ready[:best], s.ready[best+1:]...)
	return seq
}
