package worker

import (
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tracing"
)

// Spans of a sequence below that of its request.
const (
	spanHandover = "handover" // until keys and values have come from another worker
	spanQueue    = "queue"    // until the first row is in a step
	spanPrefill  = "prefill"  // until the first token
	spanDecode   = "decode"   // until the last
)

// sequenceSpans are the spans of a sequence at its worker, one after the other.
type sequenceSpans struct {
	tracer trace.Tracer
	parent tracing.Parent
	now    trace.Span
}

func newSequenceSpans(t trace.Tracer, g *msg.Generate) sequenceSpans {
	s := sequenceSpans{tracer: t, parent: g.Trace, now: noop.Span{}}
	stage := spanQueue
	if g.Source != nil && g.Beams == nil {
		stage = spanHandover
	}
	s.next(stage)
	return s
}

// next ends a stage and begins another one.
func (s *sequenceSpans) next(stage string) {
	s.now.End()
	s.now = tracing.Stage(s.tracer, s.parent, stage)
}

// end ends the last stage with the sequence, with the number of its generated
// tokens.
func (s *sequenceSpans) end(tokens int, finish api.Finish, err error) {
	if s.now.IsRecording() {
		s.now.SetAttributes(semconv.GenAIUsageOutputTokens(tokens), semconv.GenAIResponseFinishReasons(string(finish)))
		tracing.Fail(s.now, string(finish), err)
	}
	s.now.End()
}
