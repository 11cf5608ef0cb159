package batch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/durable"
	"github.com/millrace/millrace/durable/objects"
	"github.com/millrace/millrace/e2e/natstest"
)

const patience = 60 * time.Second

// world is a NATS server and gateways with a scripted engine.
type world struct {
	t      *testing.T
	server *server.Server
	dir    string
	engine *apitest.Engine
	keys   apitest.Keys
	ran    atomic.Int64 // answers that the engine has begun
	gate   chan struct{}
}

type gateway struct {
	*Batches
	files *objects.Store
	nc    *nats.Conn
}

func newWorld(t *testing.T) *world {
	t.Parallel() // a test waits most of its time
	w := &world{t: t, dir: t.TempDir(), keys: apitest.Keys{"a": {ID: "a", Tenant: "tenant a"}, "b": {ID: "b", Tenant: "tenant b"}},
		gate: make(chan struct{})}
	w.server = natstest.Start(t, &server.Options{JetStream: true, StoreDir: w.dir})
	w.engine = apitest.New(func(r *api.Request, s *apitest.Stream) {
		w.ran.Add(1)
		if strings.Contains(r.Prompt, "wait") {
			select {
			case <-w.gate:
			case <-s.Closed():
				return
			}
		}
		apitest.Say(fmt.Sprintf("%s with %d", r.Prompt, r.Sampling.Seed))(r, s)
	})
	return w
}

func (w *world) gateway() *gateway {
	g := &gateway{nc: natstest.Connect(w.t, w.server, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))}
	js, err := jetstream.New(g.nc)
	require.NoError(w.t, err)
	work, err := OpenWork(w.t.Context(), g.nc, js, 64<<20)
	require.NoError(w.t, err)
	g.files, err = objects.Open(w.t.Context(), g.nc,
		objects.Options{Bucket: "MILLRACE_FILES", Noun: "file", Keep: time.Hour, MaxBytes: 64 << 20, Tenants: w.keys.Tenants})
	require.NoError(w.t, err)
	g.Batches, err = Open(w.t.Context(), g.nc, Options{
		Logger: zerolog.Nop(), Engine: w.engine, Calls: call.NewDirect(w.engine), Keys: w.keys, Files: g.files, JetStream: js, Work: work,
		MaxBytes: 64 << 20,
		Room:     func() int { return 8 }, Lease: 4 * time.Second,
	})
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		g.Close()
		g.files.Close()
	})
	return g
}

func as(w *world, key string) context.Context { return api.WithCaller(w.t.Context(), w.keys[key]) }

func (w *world) upload(g *gateway, key, text string) string {
	o, err := g.files.Put(w.t.Context(), w.keys[key].Tenant, "file-"+fmt.Sprint(time.Now().UnixNano()),
		map[string]string{FieldPurpose: "batch"}, time.Time{}, strings.NewReader(text))
	require.NoError(w.t, err)
	return o.ID
}

func (w *world) create(g *gateway, key, text string) *Record {
	r, err := g.Create(as(w, key), Request{Endpoint: "/v1/completions", Input: w.upload(g, key, text), Window: time.Hour})
	require.NoError(w.t, err)
	return r
}

// until waits until the batch has a status.
func (w *world) until(g *gateway, key, id string, ok func(*Record) bool) (r *Record) {
	require.Eventually(w.t, func() bool {
		var err error
		r, err = g.Get(as(w, key), id)
		return err == nil && ok(r)
	}, patience, 20*time.Millisecond)
	return r
}

func (w *world) ended(g *gateway, key, id string) *Record {
	return w.until(g, key, id, func(r *Record) bool { return r.Status.Ended() })
}

// results returns the lines of the files of a batch by their custom IDs, and checks that each is there once.
func (w *world) results(g *gateway, key string, r *Record) (ok, failures map[string]Result) {
	read := func(file string) map[string]Result {
		all := map[string]Result{}
		if file == "" {
			return all
		}
		_, from, err := g.files.Get(w.t.Context(), w.keys[key].Tenant, file)
		require.NoError(w.t, err)
		defer from.Close()
		in := bufio.NewScanner(from)
		for in.Scan() {
			var one Result
			require.NoError(w.t, json.Unmarshal(in.Bytes(), &one))
			require.NotContains(w.t, all, one.CustomID)
			all[one.CustomID] = one
		}
		require.NoError(w.t, in.Err())
		return all
	}
	ok, failures = read(r.Output), read(r.Errors)
	require.Len(w.t, ok, r.Counts.Completed)
	require.Len(w.t, failures, r.Counts.Failed)
	require.Equal(w.t, r.Counts.Total, len(ok)+len(failures), "every line is accounted for")
	for id := range ok {
		require.NotContains(w.t, failures, id)
	}
	return ok, failures
}

func file(n int, prompt func(i int) string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"custom_id":"line-%d","method":"POST","url":"/v1/completions","body":{"prompt":%q,"max_tokens":4}}`+"\n", i,
			prompt(i))
	}
	return b.String()
}

func text(t *testing.T, r Result) string {
	var answer struct{ Choices []struct{ Text string } }
	require.NoError(t, json.Unmarshal(r.Response.Body, &answer))
	return answer.Choices[0].Text
}

func TestABatchRunsItsLinesAndRefusesTheBadOnes(t *testing.T) {
	w := newWorld(t)
	g := w.gateway()
	input := file(20, func(i int) string { return fmt.Sprint("prompt ", i) }) +
		`{"custom_id":"bad","method":"POST","url":"/v1/completions","body":{"prompt":"x","temperature":9}}` + "\n"
	r := w.create(g, "a", input)
	require.Equal(t, Validating, r.Status)
	r = w.ended(g, "a", r.ID)
	require.Equal(t, Completed, r.Status)
	require.Equal(t, Counts{Total: 21, Completed: 20, Failed: 1}, r.Counts)
	ok, failures := w.results(g, "a", r)
	for i := range 20 {
		one := ok[fmt.Sprint("line-", i)]
		require.Equal(t, fmt.Sprintf("prompt %d with %d", i, call.SeedOf("cmpl-"+key(r.ID, i))), text(t, one),
			"the seed is that of the line")
		require.Equal(t, "batch_req_"+key(r.ID, i), one.ID)
	}
	require.Equal(t, 400, failures["bad"].Response.StatusCode)
	require.Contains(t, string(failures["bad"].Response.Body), "temperature")
	for _, q := range w.engine.Requests() {
		require.Equal(t, api.PriorityIdle, q.Priority)
	}
	o, err := g.files.Info(t.Context(), "tenant a", r.Output)
	require.NoError(t, err)
	require.Equal(t, "batch_output", o.Fields[FieldPurpose])
	left, err := g.storage.(*stored).results.Info(t.Context())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		left, err = g.storage.(*stored).results.Info(t.Context())
		return err == nil && left.State.Msgs == 0
	}, patience, 20*time.Millisecond, "an ended batch leaves no results")
}

func TestABadFileFailsItsBatch(t *testing.T) {
	w := newWorld(t)
	g := w.gateway()
	r := w.ended(g, "a", w.create(g, "a", file(2, func(int) string { return "x" })+"{\n").ID)
	require.Equal(t, Failed, r.Status)
	require.Equal(t, 3, r.Faults[0].Line)
	require.Zero(t, w.ran.Load())
}

// A gateway that is cut off from NATS in the middle of its lines is as good as dead. Another one runs them, and keeps the batch.
func TestADeadGatewaysLinesRunElsewhereOnce(t *testing.T) {
	w := newWorld(t)
	first := w.gateway()
	r := w.create(first, "a", file(30, func(i int) string {
		if i%3 == 0 {
			return fmt.Sprint("wait ", i)
		}
		return fmt.Sprint("prompt ", i)
	}))
	require.Eventually(t, func() bool { return w.ran.Load() >= 8 }, patience, time.Millisecond)
	first.nc.Close()
	close(w.gate)
	second := w.gateway()
	r = w.ended(second, "a", r.ID)
	require.Equal(t, Completed, r.Status)
	require.Equal(t, 30, r.Counts.Completed)
	ok, _ := w.results(second, "a", r)
	for i := range 30 {
		name := "prompt"
		if i%3 == 0 {
			name = "wait"
		}
		require.Equal(t, fmt.Sprintf("%s %d with %d", name, i, call.SeedOf("cmpl-"+key(r.ID, i))), text(t, ok[fmt.Sprint("line-", i)]))
	}
}

func TestABatchSurvivesARestartOfNATS(t *testing.T) {
	w := newWorld(t)
	g := w.gateway()
	r := w.create(g, "a", file(30, func(i int) string {
		if i >= 10 {
			return fmt.Sprint("wait ", i)
		}
		return "x"
	}))
	w.until(g, "a", r.ID, func(r *Record) bool { return r.Counts.Completed > 0 })
	o := natstest.Stop(w.server)
	o.StoreDir = w.dir
	w.server = natstest.Start(t, o)
	close(w.gate)
	r = w.ended(g, "a", r.ID)
	require.Equal(t, Completed, r.Status)
	w.results(g, "a", r)
	require.Equal(t, 30, r.Counts.Completed)
}

func TestACancelledBatchAccountsForEveryLine(t *testing.T) {
	w := newWorld(t)
	g, other := w.gateway(), w.gateway()
	r := w.create(g, "a", file(40, func(i int) string {
		if i >= 5 {
			return "wait"
		}
		return "x"
	}))
	w.until(g, "a", r.ID, func(*Record) bool { return w.ran.Load() >= 10 })
	require.Eventually(t, func() bool {
		n := 0
		err := g.storage.recorded(t.Context(), &Record{Tenant: "tenant a", ID: r.ID}, func(int, bool) { n++ })
		return err == nil && n >= 5
	}, patience, 20*time.Millisecond)
	_, err := other.Cancel(as(w, "a"), r.ID)
	require.NoError(t, err)
	r = w.ended(g, "a", r.ID)
	require.Equal(t, Cancelled, r.Status)
	require.Equal(t, Counts{Total: 40, Completed: 5, Failed: 35}, r.Counts)
	ok, failures := w.results(other, "a", r)
	require.Contains(t, ok, "line-0")
	require.Equal(t, "batch_cancelled", failures["line-39"].Error.Code)
	w.engine.WaitIdle() // the lines that ran have stopped
}

// A gateway's watch of the batches is late for some seconds after a restart of NATS.
func TestTheFileOfABatchThatEndedElsewhereIsNotInUse(t *testing.T) {
	w := newWorld(t)
	g, late := w.gateway(), w.gateway()
	r := w.create(late, "a", file(1, func(int) string { return "wait" }))
	w.until(g, "a", r.ID, func(r *Record) bool { return r.Status == InProgress })
	late.Close() // it does not watch any more
	token := durable.TenantToken(r.Tenant)
	_, used := late.Uses(t.Context(), token, r.Input)
	require.True(t, used)
	close(w.gate)
	w.ended(g, "a", r.ID)
	_, used = late.Uses(t.Context(), token, r.Input)
	require.False(t, used)
}

func TestABatchExpires(t *testing.T) {
	w := newWorld(t)
	g := w.gateway()
	r := w.create(g, "a", file(12, func(i int) string {
		if i >= 3 {
			return "wait"
		}
		return "x"
	}))
	w.until(g, "a", r.ID, func(r *Record) bool { return r.Counts.Completed == 3 })
	_, err := g.storage.change(t.Context(), "tenant a", r.ID, func(r *Record) error {
		r.Deadline = time.Now().Unix()
		return nil
	})
	require.NoError(t, err)
	r = w.ended(g, "a", r.ID)
	require.Equal(t, Expired, r.Status)
	require.Equal(t, Counts{Total: 12, Completed: 3, Failed: 9}, r.Counts)
	_, failures := w.results(g, "a", r)
	require.Equal(t, "batch_expired", failures["line-11"].Error.Code)
}

func TestABatchBelongsToItsTenant(t *testing.T) {
	w := newWorld(t)
	g := w.gateway()
	r := w.create(g, "a", file(1, func(int) string { return "x" }))
	notThere := func(err error) {
		var e *api.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, api.CodeNotFound, e.Code)
	}
	for _, id := range []string{r.ID, "", "batch_x", "*", "batch_" + strings.Repeat("0", 32), "../" + r.ID} {
		_, err := g.Get(as(w, "b"), id)
		notThere(err)
		_, err = g.Cancel(as(w, "b"), id)
		notThere(err)
	}
	_, err := g.Create(as(w, "b"), Request{Endpoint: "/v1/completions", Input: r.Input, Window: time.Hour})
	notThere(err)
	require.Empty(t, g.List(as(w, "b")))
	require.Len(t, g.List(as(w, "a")), 1)
	r = w.ended(g, "a", r.ID)
	_, _, err = g.files.Get(t.Context(), "tenant b", r.Output)
	notThere(err)
}

func TestWithoutItsKeyABatchFailsLineByLine(t *testing.T) {
	w := newWorld(t)
	g := w.gateway()
	input := w.upload(g, "a", file(3, func(int) string { return "x" }))
	r, err := g.Create(api.WithCaller(t.Context(), apitest.Key{ID: "gone", Tenant: "tenant a"}),
		Request{Endpoint: "/v1/completions", Input: input, Window: time.Hour})
	require.NoError(t, err)
	r = w.ended(g, "a", r.ID)
	require.Equal(t, Counts{Total: 3, Failed: 3}, r.Counts)
	_, failures := w.results(g, "a", r)
	require.Equal(t, 401, failures["line-0"].Response.StatusCode)
	require.Empty(t, r.Output, "no result, no file")
	require.Zero(t, w.ran.Load())
}

func TestALineThatIsRefusedForNowRunsLater(t *testing.T) {
	w := newWorld(t)
	var refused atomic.Int64
	w.engine.Refuse = func(*api.Request) error {
		if refused.Add(1) <= 3 {
			return &api.Error{Code: api.CodeOverloaded, Message: "full"}
		}
		return nil
	}
	g := w.gateway()
	r := w.ended(g, "a", w.create(g, "a", file(2, func(int) string { return "x" })).ID)
	require.Equal(t, Counts{Total: 2, Completed: 2}, r.Counts)
	require.EqualValues(t, 5, refused.Load())
}

func TestAFileOfResultsIsWholeOrNotThere(t *testing.T) {
	w := newWorld(t)
	g := w.gateway()
	r := &Record{Tenant: "tenant a", ID: "batch_x"}
	o := g.output(t.Context(), r, "output")
	require.NoError(t, o.write([]byte("{}")))
	o.abort()
	_, err := g.files.Info(t.Context(), "tenant a", o.id())
	require.Error(t, err)
	require.NoError(t, g.output(t.Context(), r, "errors").close())
}

func TestAnObjectIsStreamedAndBounded(t *testing.T) {
	w := newWorld(t)
	g := w.gateway()
	large := bytes.Repeat([]byte("0123456789"), 100_000)
	o, err := g.files.Put(t.Context(), "tenant a", "file-large", nil, time.Time{}, bytes.NewReader(large))
	require.NoError(t, err)
	require.EqualValues(t, len(large), o.Size)
	_, from, err := g.files.Get(t.Context(), "tenant a", "file-large")
	require.NoError(t, err)
	got, err := io.ReadAll(from)
	require.NoError(t, err)
	require.True(t, bytes.Equal(large, got))
	require.NoError(t, from.Close())
	require.Error(t, g.files.Delete(t.Context(), "tenant b", "file-large"))
	_, err = g.files.Put(t.Context(), "tenant a", "file-endless", nil, time.Time{}, io.LimitReader(zeros{}, 40<<20)) // the share is 32 MiB
	var e *api.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, api.CodeOverloaded, e.Code)
	_, err = g.files.Info(t.Context(), "tenant a", "file-endless")
	require.Error(t, err)
	require.NoError(t, g.files.Room("tenant b"), "a tenant's share is its own")
	require.NoError(t, g.files.Delete(t.Context(), "tenant a", "file-large"))
	require.Empty(t, g.files.List("tenant a"))
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestAResultIsRecordedOnce(t *testing.T) {
	w := newWorld(t)
	g := w.gateway()
	r := &Record{Tenant: "tenant a", ID: "batch_x"}
	first, err := g.storage.put(t.Context(), r, 7, true, []byte("one"))
	require.NoError(t, err)
	require.True(t, first)
	second, err := g.storage.put(t.Context(), r, 7, false, []byte("two"))
	require.NoError(t, err)
	require.False(t, second)
	body, ok, err := g.storage.result(t.Context(), r, 7)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "one", string(body))
	body, _, err = g.storage.result(t.Context(), r, 8)
	require.NoError(t, err)
	require.Nil(t, body)
	_, err = g.storage.put(t.Context(), &Record{Tenant: "tenant b", ID: "batch_x"}, 7, true, []byte("other"))
	require.NoError(t, err)
	require.NoError(t, g.storage.forget(t.Context(), r))
	body, _, err = g.storage.result(t.Context(), r, 7)
	require.NoError(t, err)
	require.Nil(t, body)
}
