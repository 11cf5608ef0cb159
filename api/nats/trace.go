package natsapi

import (
	"context"
	"strconv"

	"github.com/nats-io/nats.go"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tracing"
)

// span starts the span of a request. A traceparent header names its parent.
func (s *Service) span(ctx context.Context, m *nats.Msg) (context.Context, trace.Span) {
	return s.opts.Tracer.Start(tracing.With(ctx, tracing.Extract(m.Header)), m.Subject, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(semconv.MessagingSystemKey.String("nats"), semconv.MessagingDestinationName(m.Subject)))
}

func endSpan(span trace.Span, r *reply) {
	if r.err != nil && api.AsError(r.err).Code >= api.CodeInternal { // other errors are the client's
		tracing.Fail(span, strconv.Itoa(int(api.AsError(r.err).Code)), r.err)
	}
	span.End()
}
