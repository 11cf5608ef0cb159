package simulate

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/kvmgr"
)

// Report is the result of a simulation. Rates are over Seconds, from time 0 to the last token.
type Report struct {
	Latencies
	Gap        Quantiles `json:"gap_seconds"` // between two tokens of an answer; quantiles within 1%
	Admission  Admission `json:"admission,omitempty"`
	Workers    int       `json:"workers"`
	Prefill    int       `json:"prefill_workers,omitempty"` // of the workers; the others decode
	Seconds    float64   `json:"seconds"`
	OfferedQPS float64   `json:"offered_qps"` // over the time of arrivals
	ServedQPS  float64   `json:"served_qps"`
	GoodQPS    float64   `json:"goodput_qps"` // served within the SLO

	PromptTokens    int     `json:"prompt_tokens"` // of the served
	OutputTokens    int     `json:"output_tokens"`
	TokensPerSecond float64 `json:"output_tokens_per_second"`

	Steps          int     `json:"steps"`
	DecodeRows     float64 `json:"decode_rows_per_step"`
	Busy           float64 `json:"busy"`                    // share of the workers' time in steps
	Bandwidth      float64 `json:"bandwidth_share"`         // bytes / what the device can move in the time
	BusyBandwidth  float64 `json:"bandwidth_share_busy"`    // the same, of the time in steps
	KVMean         float64 `json:"kv_share_mean"`           // of the pools, used or promised, in steps
	KVMax          float64 `json:"kv_share_max"`            // of one worker
	CostPerMillion float64 `json:"cost_per_million_tokens"` // of output, in the unit of the price

	Waiting    Waiting `json:"while_requests_wait"`
	Preempted  int     `json:"preempted"`         // times that a sequence lost its slabs
	Recomputed int     `json:"recomputed_tokens"` // that were in the KV cache before
	// of the sequences with slabs or in the tier, those that could not run until they may grow; mean over the steps
	Paused    float64 `json:"paused_share"`
	Tier      Tier    `json:"tier"`
	Handovers int     `json:"handovers"` // sequences that went from a prefill to a decode worker

	Slices []Slice `json:"slices,omitempty"`
}

// Division names the roles of the workers.
func (r *Report) Division() string {
	if r.Prefill == 0 {
		return fmt.Sprintf("%d compute", r.Workers)
	}
	return fmt.Sprintf("%d prefill, %d decode", r.Prefill, r.Workers-r.Prefill)
}

// Tier is the copies to the spill tiers of all workers, and back.
type Tier struct {
	Spills   int `json:"spills"`
	Restores int `json:"restores"`
	Slabs    int `json:"spilled_slabs"`
}

// Waiting is the state of the workers in the steps in which requests waited to be admitted: means by time.
type Waiting struct {
	Share     float64 `json:"share"`     // of the time in steps
	Sequences float64 `json:"sequences"` // with slabs, of one worker
	Held      float64 `json:"held"`      // share of the pool that holds a token of an unfinished sequence
	Reserved  float64 `json:"reserved"`  // share of the pool that is used or promised
}

// Latencies of requests. Quantiles are nearest ranks, over the served.
type Latencies struct {
	Requests int            `json:"requests"`
	Served   int            `json:"served"`
	Good     int            `json:"good"` // served within the SLO
	Refused  map[string]int `json:"refused"`
	TTFT     Quantiles      `json:"ttft_seconds"`
	TPOT     Quantiles      `json:"tpot_seconds"` // of answers of two tokens or more
}

// RefusedSum is the number of requests that were refused, for whatever reason.
func (l *Latencies) RefusedSum() (sum int) {
	for _, n := range l.Refused {
		sum += n
	}
	return sum
}

// Quantiles of a latency, in seconds.
type Quantiles struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
}

// NewQuantiles sorts the values.
func NewQuantiles(values []float32) (q Quantiles) {
	if len(values) == 0 {
		return q
	}
	slices.Sort(values)
	rank := func(share float64) float64 {
		return float64(values[max(int(math.Ceil(share*float64(len(values))))-1, 0)])
	}
	for _, v := range values {
		q.Mean += float64(v)
	}
	q.Mean /= float64(len(values))
	q.P50, q.P95, q.P99 = rank(0.5), rank(0.95), rank(0.99)
	return q
}

// Slice is the requests of a part of the arrivals.
type Slice struct {
	Latencies
	QPS float64 `json:"offered_qps"`
}

// tally counts while the simulation runs. It keeps eight bytes for each served request.
type tally struct {
	slo      SLO
	front    time.Duration // of each request beside its steps
	requests int
	slices   []slice

	prompt, output, steps, decodeRows int
	busy                              time.Duration
	bytes                             float64
	kv, kvMax                         float64 // seconds x share; share
	waiting                           Waiting // seconds; the others times seconds
	preempted, recomputed             int
	paused, running                   int // sum over the steps
	tier                              Tier
	handovers                         int
	gaps                              gaps
	last                              time.Duration
	ends                              int
}

type slice struct {
	refused    map[string]int // by reason
	good       int
	ttft, tpot []float32 // seconds
	until      time.Duration
	arrived    int
}

func newTally(cfg *Config) *tally {
	t := &tally{
		slo: cfg.SLO, front: time.Duration(cfg.Device.RequestSeconds * float64(time.Second)),
		requests: cfg.Requests.Len(), slices: make([]slice, max(cfg.Slices, 1)),
	}
	for i := range t.slices {
		t.slices[i].refused = make(map[string]int)
	}
	return t
}

// slice is that of a request by its number.
func (t *tally) slice(i int) int { return min(i*len(t.slices)/t.requests, len(t.slices)-1) }

// arrived notes an arrival.
func (t *tally) arrived(slice int, at time.Duration) {
	s := &t.slices[slice]
	s.arrived++
	s.until = at
}

func (t *tally) ended() int { return t.ends }

func (t *tally) refused(slice int, why string) {
	t.ends++
	t.slices[slice].refused[why]++
}

// served counts a request at its last token.
func (t *tally) served(q *live, now time.Duration) {
	s := &t.slices[q.slice]
	t.ends++
	t.prompt += q.Prompt
	t.output += q.Output
	t.last = max(t.last, now)
	ttft := q.first - q.At + t.front
	s.ttft = append(s.ttft, float32(ttft.Seconds()))
	good := t.slo.TTFT == 0 || ttft <= t.slo.TTFT
	if q.Output > 1 {
		tpot := (now - q.first) / time.Duration(q.Output-1)
		s.tpot = append(s.tpot, float32(tpot.Seconds()))
		good = good && (t.slo.TPOT == 0 || tpot <= t.slo.TPOT)
	}
	if good {
		s.good++
	}
}

// load is the state of a worker in a step.
type load struct {
	kv               kvmgr.Stats
	held             int // slabs that hold a token
	running, waiting int // sequences
	away             int // those in the tier
}

func (t *tally) step(p *sched.Plan, cost sim.Time, took time.Duration, l load) {
	t.steps++
	t.decodeRows += p.DecodeRows
	t.busy += took
	t.bytes += float64(cost.Bytes)
	t.kv += l.kv.Usage() * took.Seconds()
	t.kvMax = max(t.kvMax, l.kv.Usage())
	t.paused += p.Paused + l.away
	t.running += l.running + l.away
	if l.waiting > 0 {
		t.waiting.Share += took.Seconds()
		t.waiting.Sequences += float64(l.running) * took.Seconds()
		t.waiting.Held += float64(l.held) / float64(l.kv.Slabs) * took.Seconds()
		t.waiting.Reserved += l.kv.Usage() * took.Seconds()
	}
}

func (t *tally) report(cfg *Config) *Report {
	r := &Report{
		Admission: cfg.Admission, Workers: cfg.Workers, Prefill: cfg.Prefill, Gap: t.gaps.quantiles(), Seconds: t.last.Seconds(),
		PromptTokens: t.prompt, OutputTokens: t.output, Steps: t.steps, KVMax: t.kvMax,
	}
	all, from := slice{refused: make(map[string]int)}, time.Duration(0)
	for i := range t.slices {
		s := &t.slices[i]
		if len(t.slices) > 1 {
			r.Slices = append(r.Slices, Slice{s.latencies(), rate(s.arrived, s.until-from)})
		}
		from = s.until
		all.add(s)
	}
	r.Latencies = all.latencies()
	r.OfferedQPS = rate(all.arrived, from)
	if t.last == 0 { // nothing was served
		return r
	}
	workerSeconds, bandwidth := float64(cfg.Workers)*r.Seconds, cfg.Device.GBps*1e9
	r.ServedQPS, r.GoodQPS = float64(r.Served)/r.Seconds, float64(r.Good)/r.Seconds
	r.TokensPerSecond = float64(t.output) / r.Seconds
	r.DecodeRows = float64(t.decodeRows) / float64(t.steps)
	r.Busy = t.busy.Seconds() / workerSeconds
	r.Bandwidth, r.BusyBandwidth = t.bytes/bandwidth/workerSeconds, t.bytes/bandwidth/t.busy.Seconds()
	r.KVMean = t.kv / t.busy.Seconds()
	r.Tier, r.Handovers = t.tier, t.handovers
	r.Preempted, r.Recomputed, r.Paused = t.preempted, t.recomputed, float64(t.paused)/float64(t.running)
	if w := t.waiting; w.Share > 0 {
		r.Waiting = Waiting{w.Share / t.busy.Seconds(), w.Sequences / w.Share, w.Held / w.Share, w.Reserved / w.Share}
	}
	r.CostPerMillion = cfg.Price * workerSeconds / 3600 / float64(t.output) * 1e6
	return r
}

// rate returns n per second. It is 0 if all arrived at once.
func rate(n int, in time.Duration) float64 {
	if in <= 0 {
		return 0
	}
	return float64(n) / in.Seconds()
}

func (s *slice) add(o *slice) {
	s.arrived += o.arrived
	s.good += o.good
	s.ttft, s.tpot = append(s.ttft, o.ttft...), append(s.tpot, o.tpot...)
	for why, n := range o.refused {
		s.refused[why] += n
	}
}

func (s *slice) latencies() Latencies {
	return Latencies{
		Requests: s.arrived, Served: len(s.ttft), Good: s.good, Refused: s.refused,
		TTFT: NewQuantiles(s.ttft), TPOT: NewQuantiles(s.tpot),
	}
}
