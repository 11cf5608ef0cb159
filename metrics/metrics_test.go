package metrics_test

import (
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metrics"
)

func scrape(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, w.Code)
	return w.Body.String()
}

func TestARequestIsInOneGaugeAtATimeAndLeavesOnce(t *testing.T) {
	m := metrics.New(metrics.Build{Version: "v0"})
	model := m.Model("tiny")
	t0 := time.Unix(1000, 0)
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }

	r := model.Queued(t0, 2)
	out := scrape(t, m)
	require.Contains(t, out, `millrace_num_requests_waiting{model="tiny"} 1`)
	require.Contains(t, out, `millrace_num_requests_running{model="tiny"} 0`)

	r.Started(at(30), 17)
	r.Started(at(31), 17)
	out = scrape(t, m)
	require.Contains(t, out, `millrace_num_requests_waiting{model="tiny"} 0`)
	require.Contains(t, out, `millrace_num_requests_running{model="tiny"} 1`)
	require.Contains(t, out, `millrace_prompt_tokens_total{model="tiny"} 17`)
	require.Contains(t, out, `millrace_request_queue_time_seconds_sum{model="tiny"} 0.03`)

	r.Tokens(at(130), 0, 1)
	r.Tokens(at(135), 1, 1) // the other choice's first token is no interval
	r.Tokens(at(150), 0, 2)
	r.Tokens(at(151), 7, 1) // no such choice
	r.Finished(at(330), "stop")
	r.Finished(at(999), "error")
	out = scrape(t, m)
	require.Contains(t, out, `millrace_num_requests_running{model="tiny"} 0`)
	require.Contains(t, out, `millrace_time_to_first_token_seconds_sum{model="tiny"} 0.13`)
	require.Contains(t, out, `millrace_request_prefill_time_seconds_sum{model="tiny"} 0.1`)
	require.Contains(t, out, `millrace_request_decode_time_seconds_sum{model="tiny"} 0.2`)
	require.Contains(t, out, `millrace_e2e_request_latency_seconds_sum{model="tiny"} 0.33`)
	require.Contains(t, out, `millrace_inter_token_latency_seconds_sum{model="tiny"} 0.02`)
	require.Contains(t, out, `millrace_inter_token_latency_seconds_count{model="tiny"} 2`)
	require.Contains(t, out, `millrace_generation_tokens_total{model="tiny"} 4`)
	require.Contains(t, out, `millrace_request_success_total{finished_reason="stop",model="tiny"} 1`)
	require.NotContains(t, out, `finished_reason="error"`)
}

func TestARequestCancelledWhileWaitingLeavesTheQueue(t *testing.T) {
	m := metrics.New(metrics.Build{})
	r := m.Model("tiny").Queued(time.Unix(0, 0), 1)
	r.Finished(time.Unix(1, 0), "cancelled")
	r.Started(time.Unix(2, 0), 5)
	r.Tokens(time.Unix(3, 0), 0, 1)
	out := scrape(t, m)
	require.Contains(t, out, `millrace_num_requests_waiting{model="tiny"} 0`)
	require.Contains(t, out, `millrace_num_requests_running{model="tiny"} 0`)
	require.Contains(t, out, `millrace_generation_tokens_total{model="tiny"} 0`)
}

func TestDashboardNamesArePresentFromTheFirstScrape(t *testing.T) {
	m := metrics.New(metrics.Build{Version: "1.2.3", Commit: "abc", Backend: "cpu", ISA: "avx2"})
	model := m.Model("tiny")
	model.KVUsage(3, 12)
	model.KVUsage(1, 0)
	model.Step(7*time.Millisecond, 2*time.Millisecond, 9, 111)
	model.Rejected("queue_full")
	model.DeviceReloaded(nil)
	model.DeviceReloaded(errors.New("no device"))
	model.DeviceReloaded(errors.New("no device"))
	stage := m.Stage("detok")
	stage.Enqueued()
	stage.Enqueued()
	stage.Served(time.Millisecond)
	out := scrape(t, m)
	for _, want := range []string{
		`millrace_kv_cache_usage_ratio{model="tiny"} 0.25`,
		`millrace_step_seconds_sum{model="tiny"} 0.007`,
		`millrace_sampling_seconds_sum{model="tiny"} 0.002`,
		`millrace_step_rows_sum{kind="decode",model="tiny"} 9`,
		`millrace_step_rows_sum{kind="prefill",model="tiny"} 111`,
		`millrace_requests_rejected_total{model="tiny",reason="queue_full"} 1`,
		`millrace_device_reloads_total{model="tiny",result="ok"} 1`,
		`millrace_device_reloads_total{model="tiny",result="failed"} 2`,
		`millrace_stage_queue_depth{stage="detok"} 1`,
		`millrace_stage_service_seconds_count{stage="detok"} 1`,
		`millrace_build_info{backend="cpu",commit="abc",isa="avx2",version="1.2.3"} 1`,
		`millrace_time_to_first_token_seconds_count{model="tiny"} 0`,
		`go_goroutines`, `process_resident_memory_bytes`,
	} {
		require.Contains(t, out, want)
	}
}

func BenchmarkToken(b *testing.B) {
	r := metrics.New(metrics.Build{}).Model("tiny").Queued(time.Unix(0, 0), 1)
	r.Started(time.Unix(0, 1), 1)
	now := time.Unix(0, 2)
	for b.Loop() {
		now = now.Add(time.Millisecond)
		r.Tokens(now, 0, 1)
	}
}

func TestVLLMsNamesAreThereWhenWanted(t *testing.T) {
	m := metrics.New(metrics.Build{})
	model := m.Model("tiny")
	model.KVUsage(3, 12)
	r := model.Queued(time.Unix(0, 0), 1)
	r.Started(time.Unix(1, 0), 5)
	r.Tokens(time.Unix(2, 0), 0, 1)
	r.Finished(time.Unix(3, 0), "stop")
	model.Queued(time.Unix(0, 0), 1)
	model.Drafted(4, 3)
	model.Prefix(10, 4)
	m.Cache(100, 16)
	require.NotContains(t, scrape(t, m), "vllm:")
	w := httptest.NewRecorder()
	m.VLLMHandler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, w.Code)
	out := w.Body.String()
	for _, want := range []string{
		`vllm:num_requests_waiting{model_name="tiny"} 1`, `vllm:num_requests_running{model_name="tiny"} 0`,
		`vllm:kv_cache_usage_perc{model_name="tiny"} 0.25`, `vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1`,
		`vllm:time_to_first_token_seconds_count{model_name="tiny"} 1`,
		`vllm:time_to_first_token_seconds_bucket{model_name="tiny",le="2.5"} 1`,
		`vllm:e2e_request_latency_seconds_sum{model_name="tiny"} 3`,
		`vllm:request_success_total{finished_reason="stop",model_name="tiny"} 1`,
		`vllm:prompt_tokens_total{model_name="tiny"} 5`, `vllm:generation_tokens_total{model_name="tiny"} 1`,
		`vllm:spec_decode_num_accepted_tokens_total{model_name="tiny"} 3`, `vllm:prefix_cache_hits_total{model_name="tiny"} 4`,
		`millrace_num_requests_waiting{model="tiny"} 1`,
	} {
		require.Contains(t, out, want)
	}
}
