package actors

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tracing"
)

// Spans below that of a request, each made where its work is done.
const (
	spanTokenize   = "tokenize"
	spanQueue      = "queue"      // at the worker, until the first row is in a step
	spanPrefill    = "prefill"    // until the first token
	spanDecode     = "decode"     // until the last
	spanDetokenize = "detokenize" // until the text has ended
)

// Events of a request's span.
const (
	eventResumed    = "resumed" // another gateway had it before
	eventFirstToken = "first_token"
	eventMigrated   = "migrated" // a sequence goes on at another worker or detokenizer
)

// requestSpan starts the span of a request that is let in, below the one in ctx.
func requestSpan(ctx context.Context, t trace.Tracer, r *api.Request) trace.Span {
	operation := semconv.GenAIOperationNameTextCompletion
	if r.Messages != nil {
		operation = semconv.GenAIOperationNameChat
	}
	_, span := t.Start(ctx, operation.Value.AsString()+" "+r.Model, trace.WithTimestamp(r.Arrival))
	if !span.IsRecording() {
		return span
	}
	span.SetAttributes(operation, semconv.GenAIRequestModel(r.Model), semconv.GenAIResponseID(r.ID), semconv.GenAIProviderNameKey.String("millrace"),
		semconv.GenAIRequestChoiceCount(r.N), semconv.GenAIRequestMaxTokens(r.MaxTokens),
		semconv.GenAIRequestTemperature(float64(r.Sampling.Temperature)), semconv.GenAIRequestTopP(float64(r.Sampling.TopP)),
		semconv.GenAIRequestTopK(float64(r.Sampling.TopK)), attribute.String("millrace.tenant", r.Tenant))
	if r.Resume != nil {
		span.AddEvent(eventResumed)
	}
	return span
}

// migrated notes in a request's span that a sequence goes on elsewhere, behind so
// many tokens.
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

// sequenceSpans are the spans of a sequence at its worker, one behind the other.
type sequenceSpans struct {
	tracer trace.Tracer
	parent tracing.Parent
	now    trace.Span
}

func newSequenceSpans(t trace.Tracer, g *msg.Generate) sequenceSpans {
	s := sequenceSpans{tracer: t, parent: g.Trace, now: noop.Span{}}
	s.next(spanQueue)
	return s
}

// next ends a stage and begins another one.
func (s *sequenceSpans) next(stage string) {
	s.now.End()
	s.now = tracing.Stage(s.tracer, s.parent, stage)
}

// end ends the last stage with the sequence, which has so many tokens behind its
// prompt.
func (s *sequenceSpans) end(tokens int, finish api.Finish, err error) {
	if s.now.IsRecording() {
		s.now.SetAttributes(semconv.GenAIUsageOutputTokens(tokens), semconv.GenAIResponseFinishReasons(string(finish)))
		tracing.Fail(s.now, string(finish), err)
	}
	s.now.End()
}
