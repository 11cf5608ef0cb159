package cluster

import (
	"context"
	"fmt"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics holds the Prometheus series of a process, each summed over its labels.
type Metrics map[string]float64

// Metrics scrapes the member's /metrics.
func (m *Member) Metrics(ctx context.Context) (Metrics, error) {
	client := http.Client{Timeout: 2 * time.Second}
	r, err := get(ctx, &client, m.URL+"/metrics")
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.Name, err)
	}
	sums := Metrics{}
	for name, family := range families {
		for _, series := range family.Metric {
			sums[name] += value(series)
		}
	}
	return sums, nil
}

// value returns the value of a counter or a gauge, or the number of observations of a histogram.
func value(series *dto.Metric) float64 {
	switch {
	case series.Counter != nil:
		return series.Counter.GetValue()
	case series.Gauge != nil:
		return series.Gauge.GetValue()
	case series.Histogram != nil:
		return float64(series.Histogram.GetSampleCount())
	}
	return series.GetUntyped().GetValue()
}
