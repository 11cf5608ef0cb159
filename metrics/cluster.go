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

	prefixBlocks                prometheus.Gauge
	prefixGaps, prefixSnapshots prometheus.Counter
	placedBlocks, placedOverlap prometheus.Counter

	MessagesIn, MessagesOut, BytesIn, BytesOut prometheus.Counter
}

// Cluster returns the series of this process as a node.
func (m *Metrics) Cluster() *Cluster { return m.cluster }

func newCluster(f promauto.Factory) *Cluster {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: "millrace_" + name, Help: help}, labels)
	}
	one := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "millrace_" + name, Help: help})
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
		prefixBlocks: f.NewGauge(prometheus.GaugeOpts{Name: "millrace_prefix_index_blocks",
			Help: "Slabs of workers' prefix caches that this gateway knows."}),
		prefixGaps:      one("prefix_index_gaps_total", "Times that events of a worker's prefix cache were missing."),
		prefixSnapshots: one("prefix_index_snapshots_total", "Snapshots of workers' prefix caches that this gateway received."),
		placedBlocks:    one("placed_prompt_blocks_total", "Full slabs of the prompts that this gateway placed by prefix."),
		placedOverlap:   one("placed_overlap_blocks_total", "Those that the chosen worker had, or was computing."),
	}
	c.MessagesIn, c.MessagesOut = c.messages.WithLabelValues("in"), c.messages.WithLabelValues("out")
	c.BytesIn, c.BytesOut = c.bytes.WithLabelValues("in"), c.bytes.WithLabelValues("out")
	return c
}

// Dropped counts n messages that were dropped.
func (c *Cluster) Dropped(reason string, n int) { c.dropped.WithLabelValues(reason).Add(float64(n)) }

// Moved counts a sequence that was started again.
func (c *Cluster) Moved(reason string) { c.moved.WithLabelValues(reason).Inc() }

// PrefixIndex sets the number of slabs that a gateway knows, and counts the gaps since the last call.
func (c *Cluster) PrefixIndex(blocks, gaps int) {
	c.prefixBlocks.Set(float64(blocks))
	c.prefixGaps.Add(float64(gaps))
}

// PrefixSnapshot counts a snapshot of a worker's prefix cache.
func (c *Cluster) PrefixSnapshot() { c.prefixSnapshots.Inc() }

// Placed counts the slabs of a prompt, and those of them that its worker has.
func (c *Cluster) Placed(blocks, overlap int) {
	c.placedBlocks.Add(float64(blocks))
	c.placedOverlap.Add(float64(overlap))
}

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
