package metrics

import (
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// vllmNames are the series that vLLM has under another name than "vllm:" and the rest of theirs here. Those of the Gateway API inference
// extension are among all of them: num_requests_waiting, num_requests_running, kv_cache_usage_perc and cache_config_info.
var vllmNames = map[string]string{
	"kv_cache_usage_ratio":        "kv_cache_usage_perc",
	"draft_tokens_total":          "spec_decode_num_draft_tokens_total",
	"draft_tokens_accepted_total": "spec_decode_num_accepted_tokens_total",
}

// vllmSame are the series that have the same name after the prefix.
var vllmSame = []string{
	"num_requests_running", "num_requests_waiting", "time_to_first_token_seconds", "inter_token_latency_seconds",
	"e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
	"prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total", "request_success_total",
}

// withVLLM gathers series, and those that vLLM has under its names too, with the label model_name in place of model.
type withVLLM struct{ of *Metrics }

// Gather implements prometheus.Gatherer.
func (g withVLLM) Gather() ([]*dto.MetricFamily, error) {
	families, err := g.of.registry.Gather()
	var more []*dto.MetricFamily
	for _, f := range families {
		name, ours := strings.CutPrefix(f.GetName(), prefix)
		if other, ok := vllmNames[name]; ok {
			name = other
		} else if !ours || !slices.Contains(vllmSame, name) {
			continue
		}
		alias := &dto.MetricFamily{Name: new("vllm:" + name), Help: f.Help, Type: f.Type, Unit: f.Unit}
		for _, m := range f.GetMetric() {
			alias.Metric = append(alias.Metric, renamed(m))
		}
		more = append(more, alias)
	}
	if c := g.of.cache.Load(); c != nil {
		more = append(more, c)
	}
	families = append(families, more...)
	slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return families, err
}

var _ prometheus.Gatherer = withVLLM{}

// renamed returns a metric with vLLM's label of the model. Its values are shared.
func renamed(m *dto.Metric) *dto.Metric {
	out := &dto.Metric{Gauge: m.Gauge, Counter: m.Counter, Summary: m.Summary, Untyped: m.Untyped, Histogram: m.Histogram,
		TimestampMs: m.TimestampMs}
	for _, l := range m.GetLabel() {
		if l.GetName() == "model" {
			l = &dto.LabelPair{Name: new("model_name"), Value: l.Value}
		}
		out.Label = append(out.Label, l)
	}
	return out
}

// Cache sets the size of the KV cache for vLLM's cache_config_info: its slabs, and the tokens of each.
func (m *Metrics) Cache(slabs, slabTokens int) {
	label := func(name string, value int) *dto.LabelPair {
		return &dto.LabelPair{Name: new(name), Value: new(strconv.Itoa(value))}
	}
	m.cache.Store(&dto.MetricFamily{
		Name: new("vllm:cache_config_info"), Help: new("Size of the KV cache, in blocks of tokens; always 1."),
		Type: dto.MetricType_GAUGE.Enum(),
		Metric: []*dto.Metric{{
			Label: []*dto.LabelPair{label("block_size", slabTokens), label("num_gpu_blocks", slabs)}, Gauge: &dto.Gauge{Value: new(1.0)},
		}},
	})
}
