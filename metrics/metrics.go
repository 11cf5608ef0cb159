// Package metrics counts and times what the pipeline does, for Prometheus.
//
// Names follow vLLM's with the prefix millrace_, so that its dashboards work
// after a rename. Every series lives in a registry of its own. Callers pass the
// time, so that measurements do not depend on when they are recorded.
//
// It must not know any other package of the program.
package metrics

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// prefix begins the name of every series.
const prefix = "millrace_"

// Build describes the running program in millrace_build_info.
type Build struct {
	Version, Commit, Backend, ISA string
}

// Metrics holds every series of one process.
type Metrics struct {
	registry *prometheus.Registry
	cluster  *Cluster
	cache    atomic.Pointer[dto.MetricFamily] // see Cache; nil: none

	running, waiting                                 *prometheus.GaugeVec
	paused, kvUsage                                  *prometheus.GaugeVec
	growthDenied                                     *prometheus.CounterVec
	spilled                                          *prometheus.GaugeVec
	restored, spillLost                              *prometheus.CounterVec
	ttft, itl, e2e, queue, prefill, decode           *prometheus.HistogramVec
	promptTokens, genTokens                          *prometheus.CounterVec
	draftTokens, acceptedTokens                      *prometheus.CounterVec
	prefixQueries, prefixHits                        *prometheus.CounterVec
	recomputed, handedOver, handedOverBytes, adopted *prometheus.CounterVec
	adoptedRecomputed                                *prometheus.CounterVec
	handoverFailures                                 *prometheus.CounterVec
	success, rejected, reloads                       *prometheus.CounterVec
	stageDepth                                       *prometheus.GaugeVec
	stageService, stepSeconds, stepRowsKind          *prometheus.HistogramVec
	samplingSeconds                                  *prometheus.HistogramVec
	diskHits, diskMisses, diskErrors                 *prometheus.CounterVec
	diskRead, diskWritten                            *prometheus.CounterVec
}

// Bucket bounds: a token on a fast device takes well under a millisecond, a long
// prompt on a slow one minutes.
var (
	tokenBuckets   = []float64{.0005, .001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5}
	requestBuckets = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640}
	stageBuckets   = prometheus.ExponentialBuckets(1e-6, 4, 12) // 1 us .. 4 s
	rowBuckets     = prometheus.ExponentialBuckets(1, 2, 14)    // 1 .. 8192
)

// New returns the series of a process, in a registry that also has those of the Go runtime and of
// the process.
func New(build Build) *Metrics {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	f := promauto.With(reg)
	m := &Metrics{registry: reg, cluster: newCluster(f)}

	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return f.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + name, Help: help, Buckets: buckets}, labels)
	}

	m.running = gauge("num_requests_running", "Requests whose tokens are being computed.", "model")
	m.waiting = gauge("num_requests_waiting", "Requests accepted and not yet in a step.", "model")
	m.paused = gauge("sequences_paused", "Sequences that wait for KV memory to grow.", "model")
	m.growthDenied = counter("kv_growth_denied_total", "Requests for more KV memory of running sequences that were denied for a time.",
		"model")
	m.spilled = gauge("kv_spilled_slabs", "Slabs that paused sequences have in the spill tier.", "model")
	m.restored = counter("kv_spill_restores_total", "Sequences that came back from the spill tier.", "model")
	m.spillLost = counter("kv_spill_replays_total",
		"Sequences computed again, since their copy in the spill tier could not be written or read.", "model")
	m.kvUsage = gauge("kv_cache_usage_ratio", "Share of KV slabs in use, 0 to 1.", "model")
	m.ttft = histogram("time_to_first_token_seconds", "From arrival to the first token.", requestBuckets, "model")
	m.itl = histogram("inter_token_latency_seconds", "Between one token and the next of a choice.", tokenBuckets, "model")
	m.e2e = histogram("e2e_request_latency_seconds", "From arrival to the end.", requestBuckets, "model")
	m.queue = histogram("request_queue_time_seconds", "From arrival to the first step.", requestBuckets, "model")
	m.prefill = histogram("request_prefill_time_seconds", "From the first step to the first token.", requestBuckets, "model")
	m.decode = histogram("request_decode_time_seconds", "From the first token to the end.", requestBuckets, "model")
	m.promptTokens = counter("prompt_tokens_total", "Prompt tokens of requests that reached a step.", "model")
	m.genTokens = counter("generation_tokens_total", "Tokens generated.", "model")
	m.prefixQueries = counter("prefix_cache_queries_total", "Tokens of prompts that were looked up in the prefix cache.", "model")
	m.prefixHits = counter("prefix_cache_hits_total", "Tokens of prompts that the prefix cache had.", "model")
	m.recomputed = counter("recomputed_tokens_total", "Tokens of migrated or spilled sequences that were computed again.", "model")
	m.handedOver = counter("handover_tokens_total", "Tokens whose keys and values were copied from another worker.", "model")
	m.adopted = counter("adopted_tokens_total", "Tokens whose keys and values were copied from the KV pool of a dead worker.", "model")
	m.adoptedRecomputed = counter("adopted_recomputed_tokens_total",
		"Tokens of sequences with adopted keys and values that were computed again.", "model")
	m.handedOverBytes = counter("handover_bytes_total", "Bytes of keys and values that were copied from another worker.", "model")
	m.handoverFailures = counter("handover_failures_total", "Copies of keys and values from another worker that failed.", "model")
	m.diskHits = counter("kv_disk_hits_total", "Slabs of prompts that came from the disk.", "model")
	m.diskMisses = counter("kv_disk_misses_total", "Whole slabs of prompts that neither memory nor disk had undamaged.", "model")
	m.diskErrors = counter("kv_disk_errors_total", "Slabs that could not be stored or read, or were damaged.", "model")
	m.diskRead = counter("kv_disk_read_bytes_total", "Bytes of keys and values that came from the disk.", "model")
	m.diskWritten = counter("kv_disk_written_bytes_total", "Bytes of keys and values that were stored on the disk.", "model")
	m.draftTokens = counter("draft_tokens_total", "Draft tokens computed.", "model")
	m.acceptedTokens = counter("draft_tokens_accepted_total", "Draft tokens accepted.", "model")
	m.success = counter("request_success_total", "Requests ended, by reason.", "model", "finished_reason")
	m.rejected = counter("requests_rejected_total", "Requests refused, by reason.", "model", "reason")
	m.reloads = counter("device_reloads_total", "Times that a failed device was loaded again, by result: ok or failed.", "model", "result")
	m.stageDepth = gauge("stage_queue_depth", "Messages waiting or in service in a stage.", "stage")
	m.stageService = histogram("stage_service_seconds", "Time a stage spent on one message.", stageBuckets, "stage")
	m.stepSeconds = histogram("step_seconds", "Time of one step: the device's, and that of sampling from its logits.", tokenBuckets,
		"model")
	m.samplingSeconds = histogram("sampling_seconds", "Time of sampling from the logits of one step: a part of step_seconds.", stageBuckets,
		"model")
	m.stepRowsKind = histogram("step_rows", "Rows of one step, by kind.", rowBuckets, "model", "kind")

	f.NewGaugeVec(prometheus.GaugeOpts{Name: "millrace_build_info", Help: "What runs; always 1."},
		[]string{"version", "commit", "backend", "isa"}).
		WithLabelValues(build.Version, build.Commit, build.Backend, build.ISA).Set(1)
	return m
}

// Handler serves the registry in Prometheus' text form.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// VLLMHandler is Handler with the series that vLLM has also under its names.
func (m *Metrics) VLLMHandler() http.Handler {
	return promhttp.HandlerFor(withVLLM{m}, promhttp.HandlerOpts{Registry: m.registry})
}

// Registry returns the registry, for series of other packages.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Stage is one pool of the pipeline (tokenize, compute, detok, ...).
type Stage struct {
	depth   prometheus.Gauge
	service prometheus.Observer
}

// Stage returns the series of a stage. Call it once per stage and keep it.
func (m *Metrics) Stage(name string) *Stage {
	return &Stage{depth: m.stageDepth.WithLabelValues(name), service: m.stageService.WithLabelValues(name)}
}

// Enqueued records that a message was sent to the stage.
func (s *Stage) Enqueued() { s.depth.Inc() }

// Served records that the stage is done with a message, which took it the time d.
func (s *Stage) Served(d time.Duration) {
	s.depth.Dec()
	s.service.Observe(d.Seconds())
}
