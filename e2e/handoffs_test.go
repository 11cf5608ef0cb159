package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	runtimetrace "runtime/trace"
	"slices"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"golang.org/x/exp/trace"

	"github.com/millrace/millrace/actors/node"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	httpapi "github.com/millrace/millrace/api/http"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/computetest"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/durable/calls"
	"github.com/millrace/millrace/e2e/natstest"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics"
)

// The hand-offs of a streamed chat request: how often a goroutine wakes, or starts, another one on the path from the handler of
// the request to the flush of a token.
const (
	handoffsToTheFirstToken = 9
	handoffsOfAToken        = 3 // from the step
	handoffsOfALog          = 1 // more of them, with a log of the answer
)

// TestTheHandOffsOfARequest follows the path of each token back through an execution trace of the runtime, which has every wake-up
// of a goroutine. Nothing is noted by the code on the path, so a hand-off that is added there counts.
func TestTheHandOffsOfARequest(t *testing.T) {
	for name, c := range map[string]struct {
		log         bool
		first, rest int
	}{
		"without a log": {false, handoffsToTheFirstToken, handoffsOfAToken},
		"with a log":    {true, handoffsToTheFirstToken + handoffsOfALog, handoffsOfAToken + handoffsOfALog},
	} {
		t.Run(name, func(t *testing.T) {
			first, rest := tracedHandOffs(t, handOffServer(t, c.log))
			require.Len(t, first.usual(), c.first, "to the first token:\n%s", first)
			require.Len(t, rest.usual(), c.rest, "from a step to its token:\n%s", rest)
		})
	}
}

// The marks of a trace, of this category.
const (
	markCategory = "handoffs"
	markBegin    = "begin" // the handler gets the request
	markStep     = "step"  // the device computes
	markFlush    = "flush" // the handler has sent a chunk
)

func mark(m string) { runtimetrace.Log(context.Background(), markCategory, m) }

// slowRunner takes time for a step. All goroutines but its own are idle when the step ends, so each hand-off wakes one.
type slowRunner struct{ *computetest.Null }

func (r slowRunner) Run(batch []compute.Rows) (compute.Logits, error) {
	const step = 10 * time.Millisecond
	mark(markStep)
	time.Sleep(step) //nolint:forbidigo // the device computes
	return r.Null.Run(batch)
}

// handOffServer serves a pipeline over a slow device, with logs of the answers or without.
func handOffServer(t *testing.T, log bool) http.Handler {
	tok, err := demoTokenizer()
	require.NoError(t, err)
	const slabs, longest, token = 1024, 4096, 300
	p, err := node.New(node.Config{
		ModelID: "m", Model: slowRunner{computetest.NewNull(slabs, tok.VocabSize(), token)}, Tokenizer: tok,
		Facts: api.WeightFacts{ContextLength: longest},
		Sched: sched.Config{
			MaxBatchTokens: 512, MaxBatchSize: 4, MaxSequenceTokens: longest,
			KV: kvmgr.NewSpec(computetest.SlabTokens, kvmgr.Full{}), LeaseAheadTokens: 2 * computetest.SlabTokens,
		},
		Metrics: metrics.New(metrics.Build{}), Log: zerolog.Nop(),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(context.Background())) })
	options := httpapi.Options{Logger: zerolog.Nop()}
	if log {
		kept, err := calls.New(natstest.Connect(t, natstest.Start(t, &natsserver.Options{JetStream: true})), call.NewDirect(p),
			calls.Options{Always: true})
		require.NoError(t, err)
		t.Cleanup(kept.Close)
		options.Calls = kept
	}
	h, err := httpapi.New(p, options)
	require.NoError(t, err)
	return h
}

// flushMarker is the connection of a client.
type flushMarker struct{ *httptest.ResponseRecorder }

func (w flushMarker) Flush() { mark(markFlush) }

// tracedHandOffs sends requests one after the other and returns the paths to their first tokens, and those from the steps to the others.
func tracedHandOffs(t *testing.T, h http.Handler) (first, rest handOffPaths) {
	const requests, tokens = 10, 5
	var out bytes.Buffer
	require.NoError(t, runtimetrace.Start(&out), "is the test traced by -trace?")
	for range requests {
		body := fmt.Sprintf(`{"model": "m", "stream": true, "max_tokens": %d, "ignore_eos": true, "messages": [{"role": "user", "content": "Hello"}]}`, tokens)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := flushMarker{httptest.NewRecorder()}
		mark(markBegin)
		h.ServeHTTP(w, r)
		if !strings.HasSuffix(w.Body.String(), "data: [DONE]\n\n") {
			runtimetrace.Stop()
			t.Fatalf("status %d, %s", w.Code, w.Body)
		}
	}
	runtimetrace.Stop()
	e := readExecution(t, &out)
	begin, flushes := 0, 0
	for _, m := range e.marks {
		switch m.name {
		case markBegin:
			begin, flushes = m.at, 0
		case markFlush:
			if flushes++; flushes == 1 {
				first = append(first, e.back(m.goroutine, m.at, begin, m.goroutine))
			} else {
				rest = append(rest, e.back(m.goroutine, m.at, begin, e.stepper))
			}
		}
	}
	require.Len(t, first, requests)
	return first, rest
}

// execution is what happened in a trace. Times are the numbers of its events.
type execution struct {
	wakes   map[trace.GoID][]wake // by the goroutine that is woken or started
	marks   []executionMark
	stepper trace.GoID // the goroutine of the device
}

type wake struct {
	at int
	by trace.GoID
	in string // function of this module that does it; "": none does
}

type executionMark struct {
	at        int
	name      string
	goroutine trace.GoID
}

func readExecution(t *testing.T, from io.Reader) *execution {
	r, err := trace.NewReader(from)
	require.NoError(t, err)
	e := &execution{wakes: map[trace.GoID][]wake{}}
	for at := 0; ; at++ {
		ev, err := r.ReadEvent()
		if errors.Is(err, io.EOF) {
			return e
		}
		require.NoError(t, err)
		switch ev.Kind() {
		case trace.EventLog:
			if l := ev.Log(); l.Category == markCategory {
				e.marks = append(e.marks, executionMark{at, l.Message, ev.Goroutine()})
				if l.Message == markStep {
					e.stepper = ev.Goroutine()
				}
			}
		case trace.EventStateTransition:
			s := ev.StateTransition()
			if s.Resource.Kind != trace.ResourceGoroutine {
				continue
			}
			before, after := s.Goroutine()
			if after == trace.GoRunnable && (before == trace.GoWaiting || before == trace.GoNotExist) {
				g := s.Resource.Goroutine()
				e.wakes[g] = append(e.wakes[g], wake{at, ev.Goroutine(), waker(ev.Stack())})
			}
		}
	}
}

// waker returns the innermost function of this module in the stack of a wake-up, other than a mailbox. It returns "" if the wake-up is
// no hand-off: timers, the network and the client of NATS wake a goroutine for its own sake, and so does who unlocks a mutex.
func waker(stack trace.Stack) string {
	const module, mailbox = "github.com/millrace/millrace/", "actors/node.(*mailbox)"
	for f := range stack.Frames() {
		if strings.Contains(f.Func, "sync.(*Mutex)") || strings.Contains(f.Func, "sync.(*RWMutex)") {
			return ""
		}
		if path, ok := strings.CutPrefix(f.Func, module); ok && !strings.HasPrefix(path, mailbox) {
			return path
		}
	}
	return ""
}

// handOffPath is the functions that handed over, in their order; nil if the path is broken.
type handOffPath []string

// back returns the path that leads to a goroutine at a time: from the goroutine origin, after begin.
func (e *execution) back(g trace.GoID, at, begin int, origin trace.GoID) (path handOffPath) {
	for {
		if g == origin && len(path) > 0 && (g == e.stepper || e.last(g, at, begin) == nil) {
			slices.Reverse(path)
			return path
		}
		w := e.last(g, at, begin)
		if w == nil {
			return nil
		}
		g, at = w.by, w.at
		path = append(path, w.in)
	}
}

// last returns the last hand-over to a goroutine between two times, or nil.
func (e *execution) last(g trace.GoID, at, begin int) *wake {
	for i := len(e.wakes[g]) - 1; i >= 0; i-- {
		if w := &e.wakes[g][i]; begin < w.at && w.at < at && w.by != trace.NoGoroutine && w.by != g && w.in != "" {
			return w
		}
	}
	return nil
}

// handOffPaths are those of several tokens.
type handOffPaths []handOffPath

// usual returns the path that most tokens have. On a busy machine some differ: a message finds its goroutine awake.
func (p handOffPaths) usual() (usual handOffPath) {
	most := 0
	for _, path := range p {
		n := 0
		for _, other := range p {
			if slices.Equal(path, other) {
				n++
			}
		}
		if n > most && path != nil {
			most, usual = n, path
		}
	}
	return usual
}

func (p handOffPaths) String() string { return "  " + strings.Join(p.usual(), "\n  ") }
