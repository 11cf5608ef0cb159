package worker

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sched"
)

const (
	// mapTime is how long a round maps and unmaps the slabs of long sequences at least, and mapShare the part of the last step's time
	// that it may take. The tokens of all others wait for that long.
	mapTime  = 2 * time.Millisecond
	mapShare = 4
	// mapBytes is a piece, after which the time is checked: it takes about a quarter of a millisecond.
	mapBytes = 4 << 20
	// mapAtOnce is the number of pieces up to which a sequence is mapped and unmapped in one go. A longer one has one piece
	// when it begins, and the others in the next rounds.
	mapAtOnce = 4
)

// mapping is the slabs of long sequences that are being mapped or unmapped, a few in each round, since all of them take
// longer than a step.
type mapping struct {
	opening  []*sequence // whose slabs are being mapped, in the order of their grants
	closing  []*sequence // whose regions are being unmapped
	released []msg.SeqID // whose regions are unmapped: their KV can be released
	spills   []msg.Spill // likewise: their KV can be copied to the tier
}

// unfinished says whether there is something to map or unmap.
func (m *mapping) unfinished() bool { return len(m.opening)+len(m.closing) > 0 }

// ended counts the sequences that the scheduler has forgotten and that still hold KV.
func (m *mapping) ended() (n int) {
	for _, s := range m.closing {
		if s.released {
			n++
		}
	}
	return n
}

// unspill drops the spill of a sequence that has ended before it was sent.
func (m *mapping) unspill(seq msg.SeqID) {
	m.spills = slices.DeleteFunc(m.spills, func(s msg.Spill) bool { return s.Seq == seq })
}

// remap continues with what is to be mapped and unmapped, for a short time.
func (l *loop) remap() error {
	if !l.mapping.unfinished() {
		return nil
	}
	end := time.Now().Add(cmp.Or(l.MapTime, max(mapTime, l.took/mapShare)))
	for l.mapping.unfinished() {
		if len(l.mapping.opening) > 0 {
			s := l.mapping.opening[0]
			if err := l.mapNext(s, l.piece()); err != nil {
				return err
			}
			if n := l.backed(s); n > s.backed { // of beams, each needs a slab
				s.backed = n
				l.events = append(l.events, sched.Granted(s.id(), n))
			}
			if len(s.unmapped) == 0 {
				l.mapping.opening = slices.Delete(l.mapping.opening, 0, 1)
			}
		} else if s := l.mapping.closing[0]; l.unmapNext(s) {
			l.mapping.closing = slices.Delete(l.mapping.closing, 0, 1)
			l.closed(s)
		}
		if !time.Now().Before(end) {
			break
		}
	}
	return nil
}

// piece returns the number of slabs of mapBytes.
func (l *loop) piece() int {
	return cmp.Or(l.MapSlabs, max(mapBytes/max(l.Runner.SlabBytes(), 1), 1))
}

// granted backs a sequence's region with the slabs of its lease, or with the first of them: the others follow in the next
// rounds. A sequence that ended meanwhile needs none; its Release follows.
func (l *loop) granted(g *msg.Granted) error {
	s := l.sequences[sched.ID(g.Seq)]
	if s == nil || s.closes {
		l.events = append(l.events, begun(g, g.UpTo))
		return nil
	}
	if s.tokens == nil {
		l.begin(s)
	}
	if s.region == nil {
		if err := l.openRegion(s, g.First); err != nil {
			return err
		}
		if l.states {
			s.head, s.stands = g.Slabs[:l.Sched.KV.Head()], g.Computed
		}
		if s.spilled > 0 {
			l.Metrics.Recomputed(s.spilled-min(g.Computed, s.spilled), false)
			s.spilled = 0
		}
	}
	if g.CopyTokens > 0 { // now: the KV manager may give the source to others after the next step
		for i, to := range g.CopyTo {
			if err := l.Runner.CopySlab(g.CopyFrom[i], to, g.CopyTokens); err != nil {
				return err
			}
		}
	}
	s.unmapped, s.leased = g.Slabs, g.UpTo
	n := l.piece()
	if len(g.Slabs) <= mapAtOnce*n {
		n = len(g.Slabs)
	}
	if err := l.mapNext(s, n); err != nil {
		return err
	}
	s.backed = l.backed(s)
	l.events = append(l.events, begun(g, s.backed))
	if len(s.unmapped) > 0 {
		l.mapping.opening = append(l.mapping.opening, s)
	}
	return nil
}

// begun is the event of a grant, of which the first tokens are backed.
func begun(g *msg.Granted, backed int) sched.Event {
	e := sched.GrantedPrefix(sched.ID(g.Seq), backed, g.Computed)
	e.Lease, e.Branch = g.UpTo, g.Branch
	return e
}

// trim unmaps the slabs of a sequence that no step reads any more. An error fails the device, after the round's messages are sent.
func (l *loop) trim(e sched.Lease) {
	s := l.sequences[e.ID]
	if s == nil || s.region == nil || s.beams != nil || e.From/l.Sched.KV.SlabTokens <= s.first {
		return
	}
	s.first = e.From / l.Sched.KV.SlabTokens
	l.fault = cmp.Or(l.fault, s.region.Advance(s.first))
}

// mapNext maps the next n slabs of a sequence, or all that are left, and at least those of one position.
func (l *loop) mapNext(s *sequence, n int) (err error) {
	groups := l.Sched.KV.Counts().Count()
	positions := max(min(len(s.unmapped), n)/groups, min(len(s.unmapped), 1))
	n = positions * groups
	if s.beams != nil {
		err = s.beams.mapSlabs(s.region, s.unmapped[:n], groups, l.Sched.KV.SlabTokens)
	} else {
		err = s.region.Append(s.unmapped[:n])
	}
	s.unmapped, s.mapped = s.unmapped[n:], s.mapped+positions
	return err
}

// backed returns the tokens whose slabs are mapped; of beams, for each of them.
func (l *loop) backed(s *sequence) int {
	if len(s.unmapped) == 0 {
		return s.leased
	}
	if s.beams != nil {
		return s.beams.backed(s.mapped, l.Sched.KV.SlabTokens)
	}
	return l.Sched.KV.Tokens(s.mapped)
}

// close unmaps a sequence's region, now or in the next rounds. It returns whether that is done. The slabs are the sequence's until
// then: the process has a limited number of mappings, which the KV manager counts by them.
func (l *loop) close(s *sequence) bool {
	if len(s.unmapped) > 0 {
		l.mapping.opening = slices.DeleteFunc(l.mapping.opening, func(o *sequence) bool { return o == s })
	}
	if s.closes {
		return false
	}
	if (s.mapped-s.first)*l.Sched.KV.Counts().Count() <= mapAtOnce*l.piece() {
		l.closeRegion(s)
		return true
	}
	s.closes = true
	l.mapping.closing = append(l.mapping.closing, s)
	return false
}

// unmapNext unmaps the next piece of a sequence's regions, and gives their addresses back at the end.
func (l *loop) unmapNext(s *sequence) (done bool) {
	left := l.piece()
	for _, r := range s.regions() {
		n, err := r.Unmap(left)
		if err != nil {
			break
		}
		if left -= n; left <= 0 {
			return false
		}
	}
	l.closeRegion(s)
	return true
}

// closed continues with a sequence whose region is unmapped: it has ended, or is to be spilled.
func (l *loop) closed(s *sequence) {
	if s.released {
		l.forgotten(s)
		return
	}
	l.mapping.spills = append(l.mapping.spills, msg.Spill{Seq: s.gen.Seq, Tokens: s.spilled})
}

// forgotten forgets a sequence whose KV is to be released later than the scheduler planned it.
func (l *loop) forgotten(s *sequence) {
	delete(l.sequences, s.id())
	l.mapping.released = append(l.mapping.released, s.gen.Seq)
	l.events = append(l.events, sched.Freed())
}

// regions are those of a sequence, the responses of beams first.
func (s *sequence) regions() []compute.Region {
	if s.region == nil {
		return nil
	}
	if s.beams == nil {
		return []compute.Region{s.region}
	}
	return append(slices.Clone(s.beams.rows.Responses), s.region)
}

// openRegion reserves addresses for a sequence whose first slabs are not there.
func (l *loop) openRegion(s *sequence, first int) (err error) {
	if s.beams == nil {
		if s.region, err = l.Runner.NewRegion(len(s.gen.Prompt) + s.gen.MaxTokens); err != nil {
			return err
		}
		s.first, s.mapped = first, first
		return s.region.Advance(first)
	}
	if s.region, err = l.Runner.NewRegion(len(s.gen.Prompt)); err != nil {
		return err
	}
	return s.beams.open(l.Runner, s.gen.MaxTokens)
}

// closeRegion unmaps all that is left of a sequence's regions.
func (l *loop) closeRegion(s *sequence) {
	if s.region != nil {
		s.region.Close()
		s.region = nil
	}
	if s.beams != nil {
		s.beams.close()
	}
	s.unmapped, s.first, s.mapped, s.closes = nil, 0, 0, false
}
