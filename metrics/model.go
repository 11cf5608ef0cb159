package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Model holds the series of one served model, with the label already looked up:
// nothing on the token path hashes a label.
type Model struct {
	running, waiting, paused, kvUsage                prometheus.Gauge
	growthDenied                                     prometheus.Counter
	ttft, itl, e2e, queue, prefill, decode           prometheus.Observer
	promptTokens, genTokens                          prometheus.Counter
	draftTokens, acceptedTokens                      prometheus.Counter
	prefixQueries, prefixHits                        prometheus.Counter
	recomputed, handedOver, handedOverBytes, adopted prometheus.Counter
	adoptedRecomputed                                prometheus.Counter
	handoverFailures                                 prometheus.Counter
	stepSeconds, stepDecodeRows, stepChunks          prometheus.Observer
	samplingSeconds                                  prometheus.Observer
	success, rejected                                *prometheus.CounterVec
	reloads, failedReloads                           prometheus.Counter
	diskHits, diskMisses, diskErrors                 prometheus.Counter
	diskRead, diskWritten                            prometheus.Counter
	spilled                                          prometheus.Gauge
	restored, spillLost                              prometheus.Counter
}

// Model returns the series of a model. Call it once per model and keep it.
func (m *Metrics) Model(id string) *Model {
	label := prometheus.Labels{"model": id}
	return &Model{
		running: m.running.With(label), waiting: m.waiting.With(label), kvUsage: m.kvUsage.With(label),
		paused: m.paused.With(label), growthDenied: m.growthDenied.With(label),
		ttft: m.ttft.With(label), itl: m.itl.With(label), e2e: m.e2e.With(label),
		queue: m.queue.With(label), prefill: m.prefill.With(label), decode: m.decode.With(label),
		promptTokens:  m.promptTokens.With(label),
		genTokens:     m.genTokens.With(label),
		prefixQueries: m.prefixQueries.With(label),
		prefixHits:    m.prefixHits.With(label),
		recomputed:    m.recomputed.With(label), handedOver: m.handedOver.With(label), handedOverBytes: m.handedOverBytes.With(label),
		adopted: m.adopted.With(label), adoptedRecomputed: m.adoptedRecomputed.With(label),
		handoverFailures: m.handoverFailures.With(label), diskHits: m.diskHits.With(label), diskMisses: m.diskMisses.With(label),
		diskErrors: m.diskErrors.With(label), spilled: m.spilled.With(label), restored: m.restored.With(label),
		spillLost: m.spillLost.With(label), diskRead: m.diskRead.With(label), diskWritten: m.diskWritten.With(label),
		draftTokens:     m.draftTokens.With(label),
		acceptedTokens:  m.acceptedTokens.With(label),
		stepSeconds:     m.stepSeconds.With(label),
		samplingSeconds: m.samplingSeconds.With(label),
		stepDecodeRows:  m.stepRowsKind.WithLabelValues(id, "decode"),
		stepChunks:      m.stepRowsKind.WithLabelValues(id, "prefill"),
		success:         m.success.MustCurryWith(label),
		rejected:        m.rejected.MustCurryWith(label),
		reloads:         m.reloads.WithLabelValues(id, "ok"),
		failedReloads:   m.reloads.WithLabelValues(id, "failed"),
	}
}

// KVUsage sets the share of KV slabs in use.
func (m *Model) KVUsage(used, total int) {
	if total > 0 {
		m.kvUsage.Set(float64(used) / float64(total))
	}
}

// Paused sets the number of sequences that wait for KV memory to grow.
func (m *Model) Paused(n int) { m.paused.Set(float64(n)) }

// GrowthDenied counts a sequence that requested more KV memory than it may have yet.
func (m *Model) GrowthDenied() { m.growthDenied.Inc() }

// Spilled sets the number of slabs that paused sequences have in the spill tier.
func (m *Model) Spilled(n int) { m.spilled.Set(float64(n)) }

// Restored counts a sequence that came back from the spill tier.
func (m *Model) Restored() { m.restored.Inc() }

// SpillLost counts a sequence in the spill tier that is computed again.
func (m *Model) SpillLost() { m.spillLost.Inc() }

// Step records one step of the device: its time, that of sampling of it, decode rows and prefill rows.
func (m *Model) Step(d, sampling time.Duration, decodeRows, prefillRows int) {
	m.stepSeconds.Observe(d.Seconds())
	m.samplingSeconds.Observe(sampling.Seconds())
	if decodeRows > 0 {
		m.stepDecodeRows.Observe(float64(decodeRows))
	}
	if prefillRows > 0 {
		m.stepChunks.Observe(float64(prefillRows))
	}
}

// Prefix records a prompt that begins to be computed, and how many of its tokens were in the KV cache already.
func (m *Model) Prefix(tokens, cached int) {
	m.prefixQueries.Add(float64(tokens))
	m.prefixHits.Add(float64(cached))
}

// PrefixTotals returns the sums of what Prefix recorded.
func (m *Model) PrefixTotals() (tokens, cached uint64) {
	return total(m.prefixQueries), total(m.prefixHits)
}

func total(c prometheus.Counter) uint64 {
	var v dto.Metric
	_ = c.Write(&v) // of a counter without exemplars it cannot fail
	return uint64(v.GetCounter().GetValue())
}

// Recomputed records a sequence of another worker that begins here, and how many of the tokens that the other one had
// computed are computed again. adopted says that keys and values of it came from the pool of a dead worker.
func (m *Model) Recomputed(tokens int, adopted bool) {
	m.recomputed.Add(float64(tokens))
	if adopted {
		m.adoptedRecomputed.Add(float64(tokens))
	}
}

// HandedOver records tokens whose keys and values were copied from another worker, in a number of bytes.
func (m *Model) HandedOver(tokens, bytes int) {
	m.handedOver.Add(float64(tokens))
	m.handedOverBytes.Add(float64(bytes))
}

// Adopted records tokens whose keys and values were copied from the pool of a dead worker.
func (m *Model) Adopted(tokens int) { m.adopted.Add(float64(tokens)) }

// HandoverFailed records a copy from another worker that ended with an error.
func (m *Model) HandoverFailed() { m.handoverFailures.Inc() }

// DiskRead records a slab of a prompt that came from the disk.
func (m *Model) DiskRead(bytes int) {
	m.diskHits.Inc()
	m.diskRead.Add(float64(bytes))
}

// DiskMissed records whole slabs of a prompt that are computed, since neither memory nor disk have them undamaged.
func (m *Model) DiskMissed(slabs int) { m.diskMisses.Add(float64(slabs)) }

// DiskWritten records a slab that was stored on the disk.
func (m *Model) DiskWritten(bytes int) { m.diskWritten.Add(float64(bytes)) }

// DiskFailed records a slab that could not be stored or read.
func (m *Model) DiskFailed() { m.diskErrors.Inc() }

// Drafted records the draft tokens that a step computed and the number that was accepted.
func (m *Model) Drafted(computed, accepted int) {
	if computed > 0 {
		m.draftTokens.Add(float64(computed))
		m.acceptedTokens.Add(float64(accepted))
	}
}

// Rejected counts a request that was refused before it was queued.
func (m *Model) Rejected(reason string) { m.rejected.WithLabelValues(reason).Inc() }

// DeviceReloaded counts a reload of a failed device; err is the error of the reload.
func (m *Model) DeviceReloaded(err error) {
	if err != nil {
		m.failedReloads.Inc()
		return
	}
	m.reloads.Inc()
}

// Request follows one request from its arrival to its end and keeps the gauges
// exact: it is in at most one of waiting and running, and leaves both once. One
// goroutine uses it.
type Request struct {
	model          *Model
	phase          phase
	arrival, start time.Time
	first          time.Time
	lastByChoice   []time.Time
}

type phase int

const (
	waiting phase = iota
	running
	ended
)

// Queued starts following an accepted request that arrived at the given time.
// choices is the number of answers that it wants.
func (m *Model) Queued(arrival time.Time, choices int) *Request {
	m.waiting.Inc()
	return &Request{model: m, arrival: arrival, lastByChoice: make([]time.Time, max(choices, 1))}
}

// Started records that the request is in a step for the first time, with promptTokens.
// Later calls change nothing.
func (r *Request) Started(now time.Time, promptTokens int) {
	if r.phase != waiting {
		return
	}
	r.phase, r.start = running, now
	r.model.waiting.Dec()
	r.model.running.Inc()
	r.model.queue.Observe(now.Sub(r.arrival).Seconds())
	r.model.promptTokens.Add(float64(promptTokens))
}

// Tokens records n new tokens of a choice. The request's first call gives the time to
// the first token; a choice's later ones the time between its tokens.
func (r *Request) Tokens(now time.Time, choice, n int) {
	if r.phase != running || n <= 0 || choice < 0 || choice >= len(r.lastByChoice) {
		return
	}
	r.model.genTokens.Add(float64(n))
	if r.first.IsZero() {
		r.first = now
		r.model.ttft.Observe(now.Sub(r.arrival).Seconds())
		r.model.prefill.Observe(now.Sub(r.start).Seconds())
	}
	if last := r.lastByChoice[choice]; !last.IsZero() {
		each := now.Sub(last).Seconds() / float64(n)
		for range n {
			r.model.itl.Observe(each)
		}
	}
	r.lastByChoice[choice] = now
}

// Finished records the end of the request (stop, length, cancelled, error). Later calls
// change nothing.
func (r *Request) Finished(now time.Time, reason string) {
	switch r.phase {
	case ended:
		return
	case waiting:
		r.model.waiting.Dec()
	case running:
		r.model.running.Dec()
	}
	r.phase = ended
	r.model.success.WithLabelValues(reason).Inc()
	r.model.e2e.Observe(now.Sub(r.arrival).Seconds())
	if !r.first.IsZero() {
		r.model.decode.Observe(now.Sub(r.first).Seconds())
	}
}
