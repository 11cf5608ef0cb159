package tracing

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Parent is the span that a stage in another actor or process is part of. The zero
// value says that the request is not traced.
type Parent = trace.SpanContext

// Of returns the parent in a context.
func Of(ctx context.Context) Parent { return trace.SpanContextFromContext(ctx) }

// With returns a context with p as the parent of its spans.
func With(ctx context.Context, p Parent) context.Context {
	if !p.IsValid() {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, p)
}

// Stage starts the span of a stage. The span does nothing unless its parent is sampled: a stage
// begins no trace of its own.
func Stage(t trace.Tracer, p Parent, stage string, options ...trace.SpanStartOption) trace.Span {
	if !p.IsSampled() {
		return noop.Span{}
	}
	_, span := t.Start(trace.ContextWithSpanContext(context.Background(), p), stage, options...)
	return span
}

// Fail records an error in a span. A nil error changes nothing.
func Fail(s trace.Span, kind string, err error) {
	if err != nil {
		s.SetStatus(codes.Error, err.Error())
		s.SetAttributes(semconv.ErrorTypeKey.String(kind))
	}
}

// The W3C names of a trace context in headers and messages.
const (
	traceparent = "traceparent"
	tracestate  = "tracestate"
)

// Extract returns the parent in headers; keys are not case-sensitive. A malformed parent is none.
func Extract(headers map[string][]string) Parent {
	m := propagation.MapCarrier{}
	for key, values := range headers {
		if strings.EqualFold(key, traceparent) || strings.EqualFold(key, tracestate) {
			m[strings.ToLower(key)] = strings.Join(values, ",")
		}
	}
	return extract(m)
}

// Decode returns the parent that Encode encoded.
func Decode(parent, state string) Parent {
	if parent == "" {
		return Parent{}
	}
	return extract(propagation.MapCarrier{traceparent: parent, tracestate: state})
}

func extract(m propagation.MapCarrier) Parent {
	if len(m) == 0 {
		return Parent{}
	}
	return Of(propagation.TraceContext{}.Extract(context.Background(), m))
}

// Encode returns a parent as the values of the W3C headers; "" if there is none.
func Encode(p Parent) (parent, state string) {
	if !p.IsValid() {
		return "", ""
	}
	m := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), p), m)
	return m[traceparent], m[tracestate]
}
