package calls

import "github.com/prometheus/client_golang/prometheus"

// metrics are the metrics of one process. The program registers Calls, which collects them.
type metrics struct {
	sessions                                               prometheus.Gauge
	takeovers, fenced, rewritten, abandoned, bytes, events prometheus.Counter
	unlogged, closed                                       prometheus.Counter
	publish                                                prometheus.Histogram
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "millrace_resume_" + name, Help: help})
	}
	return &metrics{
		sessions: prometheus.NewGauge(prometheus.GaugeOpts{Name: "millrace_resume_streams",
			Help: "Resumable calls that this process runs or reads."}),
		takeovers: counter("takeovers_total", "Calls taken over from another gateway."),
		fenced:    counter("fenced_total", "Calls that another gateway took over while this one ran them."),
		rewritten: counter("rewritten_total", "Logs rewritten: lost with the NATS server, or refreshed before they expire."),
		abandoned: counter("abandoned_total", "Calls cancelled because they had no reader for too long."),
		unlogged:  counter("unlogged_total", "Calls without a log: their tenant's share of the logs was used up."),
		closed:    counter("closed_total", "Calls whose log was closed while they ran: it exceeded their tenant's share."),
		bytes:     counter("journal_bytes_total", "Bytes of records written."),
		events:    counter("journal_events_total", "Events written."),
		publish: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "millrace_resume_journal_seconds",
			Help:    "Time from a batch of events to the acknowledgment of its record, in seconds.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 14)}),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.sessions, m.takeovers, m.fenced, m.rewritten, m.abandoned, m.bytes, m.events, m.unlogged, m.closed, m.publish}
}

// Describe implements prometheus.Collector.
func (c *Calls) Describe(out chan<- *prometheus.Desc) {
	for _, m := range c.metrics.all() {
		m.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (c *Calls) Collect(out chan<- prometheus.Metric) {
	for _, m := range c.metrics.all() {
		m.Collect(out)
	}
}
