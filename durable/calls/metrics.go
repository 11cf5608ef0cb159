package calls

import "github.com/prometheus/client_golang/prometheus"

// metrics are the metrics of one process. The program registers Calls, which collects them.
type metrics struct {
	sessions                                       prometheus.Gauge
	takeovers, fenced, abandoned, events, unlogged prometheus.Counter
	publish                                        prometheus.Histogram
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
		abandoned: counter("abandoned_total", "Calls cancelled because they had no reader for too long."),
		unlogged:  counter("unlogged_total", "Calls without a log: their tenant's share of the logs was used up."),
		events:    counter("journal_events_total", "Events written."),
		publish: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "millrace_resume_journal_seconds",
			Help:    "Time from a batch of events to the acknowledgment of its record, in seconds.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 14)}),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.sessions, m.takeovers, m.fenced, m.abandoned, m.events, m.unlogged, m.publish}
}

// Describe implements prometheus.Collector.
func (c *Calls) Describe(out chan<- *prometheus.Desc) {
	for _, m := range append(c.metrics.all(), c.logs.Metrics()...) {
		m.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (c *Calls) Collect(out chan<- prometheus.Metric) {
	for _, m := range append(c.metrics.all(), c.logs.Metrics()...) {
		m.Collect(out)
	}
}
