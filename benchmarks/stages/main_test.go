package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metrics"
)

// TestARowHasTheTimeOfEachStage: of the series that a server has, and of its last steps.
func TestARowHasTheTimeOfEachStage(t *testing.T) {
	m := metrics.New(metrics.Build{})
	m.Model("x").Step(90*time.Millisecond, 20*time.Millisecond, 1, 0)
	for stage, took := range map[string]time.Duration{"tokenize": 7 * time.Millisecond, "detok": 3 * time.Millisecond,
		"compute": time.Hour} {
		s := m.Stage(stage)
		s.Enqueued()
		s.Served(took)
	}
	begin := time.Now()
	mux := http.NewServeMux()
	mux.Handle("/metrics", m.Handler())
	mux.HandleFunc("/debug/pipeline", func(w http.ResponseWriter, _ *http.Request) {
		step := func(number, at, rows string) string {
			return `{"number":` + number + `,"at":"` + at + `","took":1000,` + rows + `}`
		}
		late, early := begin.Add(time.Hour).Format(time.RFC3339), begin.Add(-time.Hour).Format(time.RFC3339)
		_, _ = w.Write([]byte(`{"steps":[` + strings.Join([]string{
			step("1", early, `"prompt_rows":5`), step("2", late, `"prompt_rows":5`), step("3", late, `"decode_rows":1`),
			step("4", late, `"decode_rows":1,"prompt_rows":5`), step("5", late, `"decode_rows":2`),
		}, ",") + `]}`)) // to a test that fails without it
	})
	server := httptest.NewServer(mux)
	defer server.Close()

	r := &result{latency: 0.1, requests: 1, tokenRate: 12}
	var err error
	r.spent, err = scrape(t.Context(), server.URL)
	require.NoError(t, err)
	r.spent["compute"] -= r.spent["sample"]
	done := make(chan struct{})
	close(done)
	r.count(watch(t.Context(), server.URL, done))
	require.Contains(t, r.row(8), "| 8 | 12 | 70.00% | 7.00% | 20.00% | 3.00% | 25%, 50%, 25% | 100.0 |")
}
