// Package tracing makes OpenTelemetry traces: one for a request, from its interface
// through the stages of the pipeline, in whatever processes they are, to its last
// token. Each stage has a span; tokens have none. See docs/observability.md.
//
// It must not know any other package of the program.
package tracing

import (
	"context"
	"fmt"
	"net/url"
	"os"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Options configure the tracer.
type Options struct {
	Endpoint string // base URL of an OTLP receiver over HTTP; "": that of the environment (OTEL_EXPORTER_OTLP_ENDPOINT), or none
	// of the traces that begin here, 0..1; 1 leaves it to the environment (OTEL_TRACES_SAMPLER). A caller's decision goes first
	Ratio   float64
	Version string // of the program
	Roles   []string
}

// endpoints are OpenTelemetry's environment variables for a receiver.
var endpoints = []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"}

// name of the instrumentation and, unless OTEL_SERVICE_NAME says otherwise, of the service.
const name = "millrace"

// Off returns a tracer that makes no spans. It passes on the trace context of the caller.
func Off() trace.Tracer { return noop.NewTracerProvider().Tracer(name) }

// Open returns the tracer of this process and a function that sends the last spans at its end.
// Without a receiver the tracer is Off. A receiver that cannot be reached is no error: spans
// are dropped, and the handler of otel.SetErrorHandler gets the error.
func Open(ctx context.Context, o Options) (_ trace.Tracer, stop func(context.Context) error, err error) {
	if !enabled(o.Endpoint) {
		return Off(), func(context.Context) error { return nil }, nil
	}
	var to []otlptracehttp.Option
	if o.Endpoint != "" {
		u, err := url.Parse(o.Endpoint)
		if err != nil {
			return nil, nil, fmt.Errorf("tracing: %w", err)
		}
		to = append(to, otlptracehttp.WithEndpointURL(u.JoinPath("v1/traces").String()))
	}
	exporter, err := otlptracehttp.New(ctx, to...)
	if err != nil {
		return nil, nil, fmt.Errorf("tracing: %w", err)
	}
	about, err := resource.New(ctx, resource.WithHost(), resource.WithAttributes(
		semconv.ServiceName(name), semconv.ServiceVersion(o.Version), semconv.ProcessPID(os.Getpid()),
		attribute.StringSlice("millrace.roles", o.Roles),
	), resource.WithFromEnv())
	if err != nil {
		return nil, nil, fmt.Errorf("tracing: %w", err)
	}
	options := []sdk.TracerProviderOption{sdk.WithBatcher(exporter), sdk.WithResource(about)}
	if o.Ratio < 1 {
		options = append(options, sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(o.Ratio))))
	}
	p := sdk.NewTracerProvider(options...)
	return p.Tracer(name, trace.WithInstrumentationVersion(o.Version), trace.WithSchemaURL(semconv.SchemaURL)), p.Shutdown, nil
}

func enabled(endpoint string) bool {
	for _, variable := range endpoints {
		if os.Getenv(variable) != "" {
			return true
		}
	}
	return endpoint != ""
}
