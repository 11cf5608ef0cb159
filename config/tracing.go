package config

import (
	"net/url"

	"github.com/spf13/pflag"
)

// Tracing says where traces go.
type Tracing struct {
	OTLPEndpoint string  // base URL of an OTLP receiver over HTTP; "": that of OTEL_EXPORTER_OTLP_ENDPOINT, or none
	TraceRatio   float64 // of the requests without a caller's decision, 0..1
}

// Register adds the settings to a command's flags.
func (t *Tracing) Register(f *pflag.FlagSet) {
	f.StringVar(&t.OTLPEndpoint, "otlp-endpoint", "",
		"URL of an OpenTelemetry collector, OTLP over HTTP (default: OTEL_EXPORTER_OTLP_ENDPOINT, or no traces)")
	f.Float64Var(&t.TraceRatio, "trace-ratio", 1, "share of requests to trace, 0 to 1, where the caller has not decided")
}

// Validate checks the settings.
func (t *Tracing) Validate() error {
	if u, err := url.Parse(t.OTLPEndpoint); t.OTLPEndpoint != "" &&
		(err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return Usagef("--otlp-endpoint: found %q, expected a URL like http://127.0.0.1:4318", t.OTLPEndpoint)
	}
	if !(t.TraceRatio >= 0 && t.TraceRatio <= 1) { // NaN is neither
		return Usagef("--trace-ratio: found %v, expected 0 to 1", t.TraceRatio)
	}
	return nil
}
