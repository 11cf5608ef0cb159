package tracing_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/tracing"
	"github.com/millrace/millrace/tracing/tracingtest"
)

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	spanID  = "b7ad6b7169203331"
)

func TestSpansReachTheReceiverBelowTheirCaller(t *testing.T) {
	r := tracingtest.NewReceiver(t)
	tracer, stop, err := tracing.Open(context.Background(), tracing.Options{Endpoint: r.URL, Ratio: 1, Version: "v1",
		Roles: []string{"gateway", "detok"}})
	require.NoError(t, err)
	caller := tracing.Decode("00-"+traceID+"-"+spanID+"-01", "a=b")
	ctx, span := tracer.Start(tracing.With(context.Background(), caller), "request")
	tracing.Stage(tracer, tracing.Of(ctx), "tokenize").End()
	failed := tracing.Stage(tracer, tracing.Of(ctx), "decode")
	tracing.Fail(failed, "500", fmt.Errorf("broken"))
	failed.End()
	span.End()
	require.NoError(t, stop(context.Background()))
	tree := r.Tree(t, traceID, spanID)
	require.Len(t, tree, 3)
	require.Equal(t, "gateway,detok", tree["request"][0].Roles)
	require.False(t, tree["request > tokenize"][0].Failed)
	require.True(t, tree["request > decode"][0].Failed)
	require.Equal(t, "500", tree["request > decode"][0].Attributes["error.type"])
}

func TestTheCallersDecisionGoesBeforeTheRatio(t *testing.T) {
	for _, c := range []struct {
		ratio  float64
		caller string
		want   int
	}{
		{1, "", 2}, {0, "", 0},
		{0, "00-" + traceID + "-" + spanID + "-01", 2},
		{1, "00-" + traceID + "-" + spanID + "-00", 0},
	} {
		r := tracingtest.NewReceiver(t)
		tracer, stop, err := tracing.Open(context.Background(), tracing.Options{Endpoint: r.URL, Ratio: c.ratio})
		require.NoError(t, err)
		ctx, span := tracer.Start(tracing.With(context.Background(), tracing.Decode(c.caller, "")), "request")
		tracing.Stage(tracer, tracing.Of(ctx), "tokenize").End()
		span.End()
		require.NoError(t, stop(context.Background()))
		require.Len(t, r.Spans(), c.want, "%+v", c)
	}
}

func TestWithoutAReceiverTheCallersContextPassesThrough(t *testing.T) {
	tracer, stop, err := tracing.Open(context.Background(), tracing.Options{Ratio: 1})
	require.NoError(t, err)
	caller := tracing.Decode("00-"+traceID+"-"+spanID+"-01", "")
	_, span := tracer.Start(tracing.With(context.Background(), caller), "request")
	require.False(t, span.IsRecording())
	require.True(t, caller.Equal(span.SpanContext()))
	require.NoError(t, stop(context.Background()))
}

func TestHeadersAreReadWhateverTheirCase(t *testing.T) {
	parent := "00-" + traceID + "-" + spanID + "-01"
	for _, key := range []string{"traceparent", "Traceparent", "TraceParent"} {
		p := tracing.Extract(map[string][]string{key: {parent}, "Tracestate": {"a=1", "b=2"}, "Accept": {"x"}})
		require.Equal(t, traceID, p.TraceID().String(), key)
		require.True(t, p.IsSampled())
		got, state := tracing.Encode(p)
		require.Equal(t, []string{parent, "a=1,b=2"}, []string{got, state})
	}
	for _, bad := range []string{"", "00-0-0-01", "00-" + traceID + "-" + spanID, parent + "x", "ff-" + traceID + "-" + spanID + "-01"} {
		require.False(t, tracing.Extract(map[string][]string{"traceparent": {bad}}).IsValid(), bad)
		require.False(t, tracing.Decode(bad, "").IsValid(), bad)
	}
	got, state := tracing.Encode(tracing.Parent{})
	require.Empty(t, got+state)
}

// A stage of a request that is not traced costs nothing.
func TestNothingIsAllocatedWithoutATrace(t *testing.T) {
	tracer := tracing.Off()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		span := tracing.Stage(tracer, tracing.Parent{}, "decode")
		tracing.Fail(span, "", nil)
		span.End()
	}))
}
