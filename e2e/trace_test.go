package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/e2e/natstest"
	"github.com/millrace/millrace/tracing/tracingtest"
)

const callerSpan = "00f067aa0ba902b7"

// callerTrace is the id of a trace that a client began.
func callerTrace(i int) string { return fmt.Sprintf("4bf92f3577b34da6a3ce929d0e0e47%02x", i+1) }

// traced sends a streamed request within a client's trace and reads the answer to its end.
func traced(url string, i int, begun func()) error {
	body := fmt.Sprintf(longBody, `"temperature":0`)
	q, err := http.NewRequest("POST", url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	q.Header.Set("Traceparent", "00-"+callerTrace(i)+"-"+callerSpan+"-01")
	r, err := (&http.Client{Timeout: patience}).Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close() //nolint:errcheck // read only
	_, err = readStream(r.Body, begun)
	return err
}

// stop ends servers, so that they send their last spans.
func stop(t *testing.T, servers ...*server) {
	for _, s := range servers {
		require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
		require.Equal(t, 0, s.exit(t))
	}
}

// stagesOf returns the spans of a stream of one sequence below that of the client.
func stagesOf(entry, request string) []string {
	below := func(names ...string) (list []string) {
		for _, n := range names {
			list = append(list, entry+" > "+request+" > "+n)
		}
		return list
	}
	return append([]string{entry, entry + " > stream", entry + " > " + request},
		below("tokenize", "queue", "prefill", "decode", "detokenize")...)
}

func paths(tree map[string][]tracingtest.Span) (list []string) {
	for path := range tree {
		list = append(list, path)
	}
	return list
}

func TestOneProcessMakesOneTraceOfARequest(t *testing.T) {
	receiver := tracingtest.NewReceiver(t)
	s := startServer(t, "--otlp-endpoint", receiver.URL)
	require.NoError(t, traced("http://"+s.http, 0, func() {}))

	nc := s.connect(t)
	m := nats.NewMsg("millrace.v1.chat.completions")
	m.Header["traceparent"] = []string{"00-" + callerTrace(1) + "-" + callerSpan + "-01"}
	m.Data = []byte(`{"model":"tiny-chat","messages":[{"role":"user","content":"Hello"}],"max_tokens":3,"temperature":0}`)
	_, err := nc.RequestMsg(m, patience)
	require.NoError(t, err)
	unsampled := nats.NewMsg(m.Subject)
	unsampled.Header["traceparent"] = []string{"00-" + callerTrace(2) + "-" + callerSpan + "-00"}
	unsampled.Data = m.Data
	_, err = nc.RequestMsg(unsampled, patience)
	require.NoError(t, err)
	stop(t, s)

	tree := receiver.Tree(t, callerTrace(0), callerSpan)
	require.ElementsMatch(t, stagesOf("POST /v1/completions", "text_completion tiny-chat"), paths(tree))
	request := tree["POST /v1/completions > text_completion tiny-chat"][0]
	require.Equal(t, []string{"first_token"}, request.Events)
	require.Equal(t, "tiny-chat", request.Attributes["gen_ai.request.model"])
	require.Contains(t, request.Attributes["gen_ai.usage.output_tokens"], "400")
	require.Equal(t, "length", request.Attributes["gen_ai.response.finish_reasons"])
	require.Contains(t, tree["POST /v1/completions"][0].Attributes["http.response.status_code"], "200")

	tree = receiver.Tree(t, callerTrace(1), callerSpan)
	want := stagesOf("millrace.v1.chat.completions", "chat tiny-chat")
	require.ElementsMatch(t, slices.DeleteFunc(want, func(s string) bool { return strings.HasSuffix(s, "> stream") }), paths(tree))
	require.Empty(t, receiver.Tree(t, callerTrace(2), callerSpan), "the caller said not to")
}

func TestATraceGoesFromTheGoClientsSpanToTheComputeStep(t *testing.T) {
	receiver := tracingtest.NewReceiver(t)
	s := startServer(t, "--otlp-endpoint", receiver.URL)
	overHTTP, err := client.NewHTTP("http://" + s.http)
	require.NoError(t, err)
	defer overHTTP.Close()
	overNATS, err := client.DialNATS("nats://" + s.nats)
	require.NoError(t, err)
	defer overNATS.Close()
	entries := []string{"POST /v1/completions", "millrace.v1.completions"}
	for i, c := range []client.Client{overHTTP, overNATS} {
		id, err := trace.TraceIDFromHex(callerTrace(i))
		require.NoError(t, err)
		span, err := trace.SpanIDFromHex(callerSpan)
		require.NoError(t, err)
		ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span,
			TraceFlags: trace.FlagsSampled}))
		_, err = c.Complete(ctx, client.CompletionRequest{Prompt: "Once", MaxTokens: 3})
		require.NoError(t, err)
	}
	stop(t, s)
	for i, entry := range entries {
		require.Subset(t, paths(receiver.Tree(t, callerTrace(i), callerSpan)), stagesOf(entry, "text_completion tiny-chat"))
	}
}

func TestAStreamThatMovesBetweenProcessesKeepsItsTrace(t *testing.T) {
	receiver := tracingtest.NewReceiver(t)
	hub := natstest.Start(t, nil)
	leaves := startRole(t, hub.ClientURL(), "compute,detok", "--otlp-endpoint", receiver.URL)
	stays := startRole(t, hub.ClientURL(), "compute,detok", "--otlp-endpoint", receiver.URL)
	gateway := startRole(t, hub.ClientURL(), "gateway,tokenize", "--otlp-endpoint", receiver.URL)
	require.Eventually(t, func() bool { return metric(t, gateway, `millrace_nodes{role="compute"}`) == 2 }, patience, 10*time.Millisecond)
	const streams = 8
	var wg, begun sync.WaitGroup
	begun.Add(streams)
	for i := range streams {
		wg.Go(func() {
			once := sync.OnceFunc(begun.Done)
			defer once()
			if err := traced("http://"+gateway.http, i, once); err != nil {
				t.Error(err)
			}
		})
	}
	begun.Wait()
	require.NoError(t, leaves.cmd.Process.Signal(syscall.SIGTERM))
	wg.Wait()
	require.Equal(t, 0, leaves.exit(t))
	stop(t, stays, gateway)
	moved := 0
	for i := range streams {
		tree := receiver.Tree(t, callerTrace(i), callerSpan)
		const entry, request = "POST /v1/completions", "POST /v1/completions > text_completion tiny-chat"
		require.Subset(t, paths(tree), stagesOf(entry, "text_completion tiny-chat"))
		require.Equal(t, "gateway,tokenize", tree[request][0].Roles)
		require.Equal(t, "compute,detok", tree[request+" > decode"][0].Roles)
		if slices.Contains(tree[request][0].Events, "migrated") {
			moved++
			decodes := tree[request+" > decode"]
			// A stream may migrate when its first worker has made every token: then nothing is left to decode.
			if whole := strings.Contains(decodes[0].Attributes["gen_ai.usage.output_tokens"], "400"); !whole || len(decodes) > 1 {
				require.Len(t, decodes, 2, "one at each worker")
			}
		}
	}
	require.Positive(t, moved)
}
