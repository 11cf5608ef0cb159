package gateway

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tracing"
)

// Events of a request's span.
const (
	eventResumed    = "resumed" // another gateway had it before
	eventFirstToken = "first_token"
	eventMigrated   = "migrated" // a sequence continues at another worker or detokenizer
)

// requestSpan starts the span of a request that is admitted, below the one in ctx.
func requestSpan(ctx context.Context, t trace.Tracer, r *api.Request) trace.Span {
	operation := semconv.GenAIOperationNameTextCompletion
	if r.Messages != nil {
		operation = semconv.GenAIOperationNameChat
	}
	_, span := t.Start(ctx, operation.Value.AsString()+" "+r.Model, trace.WithTimestamp(r.Arrival))
	if !span.IsRecording() {
		return span
	}
	span.SetAttributes(operation, semconv.GenAIRequestModel(r.Model), semconv.GenAIResponseID(r.ID),
		semconv.GenAIProviderNameKey.String("millrace"),
		semconv.GenAIRequestChoiceCount(r.N), semconv.GenAIRequestMaxTokens(r.MaxTokens),
		semconv.GenAIRequestTemperature(float64(r.Sampling.Temperature)), semconv.GenAIRequestTopP(float64(r.Sampling.TopP)),
		semconv.GenAIRequestTopK(float64(r.Sampling.TopK)), attribute.String("millrace.tenant", r.Tenant))
	if r.Takeover != nil {
		span.AddEvent(eventResumed)
	}
	return span
}

// migrated notes in a request's span that a sequence continues elsewhere, after a number of
// tokens.
func migrated(span trace.Span, why, from string, tokens int) {
	if span.IsRecording() {
		span.AddEvent(eventMigrated, trace.WithAttributes(attribute.String("millrace.reason", why),
			attribute.String("millrace.from", from), attribute.Int("millrace.tokens", tokens)))
	}
}

// endRequest ends a request's span with its last event.
func endRequest(span trace.Span, e *api.Event) {
	if span.IsRecording() {
		span.SetAttributes(semconv.GenAIUsageInputTokens(e.Usage.PromptTokens), semconv.GenAIUsageOutputTokens(e.Usage.CompletionTokens),
			semconv.GenAIResponseFinishReasons(string(e.Finish)))
		tracing.Fail(span, string(e.Finish), e.Err)
	}
	span.End()
}
