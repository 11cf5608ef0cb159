package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Cluster holds the series of a process as a node of a cluster.
type Cluster struct {
	messages, bytes, dropped, moved *prometheus.CounterVec
	nodes                           *prometheus.GaugeVec
	suspected                       prometheus.Gauge
	kinds, texts                    *prometheus.GaugeVec
	models                          map[string]bool // that kinds has; one goroutine sets them

	MessagesIn, MessagesOut, BytesIn, BytesOut prometheus.Counter
}

// Cluster returns the series of this process as a node.
func (m *Metrics) Cluster() *Cluster { return m.cluster }

func newCluster(f promauto.Factory) *Cluster {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: "millrace_" + name, Help: help}, labels)
	}
	c := &Cluster{
		messages: counter("remote_messages_total", "Messages between actors that went over NATS.", "direction"),
		bytes:    counter("remote_bytes_total", "Bytes of the NATS messages that they went in.", "direction"),
		dropped:  counter("remote_dropped_total", "Messages between actors that were dropped, by reason.", "reason"),
		moved:    counter("migrations_total", "Sequences that were started again, mostly elsewhere, by reason.", "reason"),
		nodes: f.NewGaugeVec(prometheus.GaugeOpts{Name: "millrace_nodes",
			Help: "Live processes of the cluster that have a role, this one among them."}, []string{"role"}),
		suspected: f.NewGauge(prometheus.GaugeOpts{Name: "millrace_nodes_suspected",
			Help: "Known processes that are silent now."}),
		kinds: f.NewGaugeVec(prometheus.GaugeOpts{Name: "millrace_numerics_classes",
			Help: "Numerics digests of a model's live workers: more than one is a mixed pool."}, []string{"model"}),
		texts: f.NewGaugeVec(prometheus.GaugeOpts{Name: "millrace_text_classes",
			Help: "Text digests of a model's live processes: more than one is a mixed pool."}, []string{"model"}),
		models: make(map[string]bool),
	}
	c.MessagesIn, c.MessagesOut = c.messages.WithLabelValues("in"), c.messages.WithLabelValues("out")
	c.BytesIn, c.BytesOut = c.bytes.WithLabelValues("in"), c.bytes.WithLabelValues("out")
	return c
}

// Dropped counts n messages that were dropped.
func (c *Cluster) Dropped(reason string, n int) { c.dropped.WithLabelValues(reason).Add(float64(n)) }

// Moved counts a sequence that was started again.
func (c *Cluster) Moved(reason string) { c.moved.WithLabelValues(reason).Inc() }

// Nodes sets the number of live processes of each role and the number of silent ones.
func (c *Cluster) Nodes(byRole map[string]int, suspected int) {
	for role, n := range byRole {
		c.nodes.WithLabelValues(role).Set(float64(n))
	}
	c.suspected.Set(float64(suspected))
}

// Kinds counts the different digests of a model's live processes.
type Kinds struct{ Numerics, Text int }

// Kinds sets the numbers of digests by model. One goroutine calls it.
func (c *Cluster) Kinds(byModel map[string]Kinds) {
	for model := range c.models {
		if _, there := byModel[model]; !there {
			c.kinds.DeleteLabelValues(model)
			c.texts.DeleteLabelValues(model)
			delete(c.models, model)
		}
	}
	for model, k := range byModel {
		c.models[model] = true
		c.kinds.WithLabelValues(model).Set(float64(k.Numerics))
		c.texts.WithLabelValues(model).Set(float64(k.Text))
	}
}
