package auth

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/compute/sample"
)

// ring is a keyring of a new file with the entries.
func ring(t *testing.T, entries ...Entry) *Keyring {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.yaml")
	write(t, path, entries...)
	r, err := Open(path)
	require.NoError(t, err)
	return r
}

func write(t *testing.T, path string, entries ...Entry) {
	t.Helper()
	var text strings.Builder
	for i := range entries {
		line, err := entries[i].Line()
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(line, "\n"), line)
		text.WriteString(line)
	}
	require.NoError(t, os.WriteFile(path+".new", []byte(text.String()), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

func TestAuthenticateTakesOnlyTheKeyItself(t *testing.T) {
	text, e := NewKey("acme")
	other, _ := NewKey("acme")
	r := ring(t, e)
	for _, header := range []string{"Bearer " + text, "bearer " + text, "Bearer  " + text + " "} {
		k, err := r.Authenticate(header)
		require.NoError(t, err, header)
		require.Equal(t, "acme", k.TenantName())
	}
	secret := text[len(prefix)+idLength+1:]
	for _, header := range []string{
		"", "Bearer", "Bearer ", text, "Basic " + text, "Bearer " + other, "Bearer " + text + "a", "Bearer " + text[:len(text)-1],
		"Bearer " + strings.ToUpper(text), "Bearer " + e.Hash, "Bearer " + prefix + e.ID + "-" + strings.Repeat("a", len(secret)),
		"Bearer " + other[:len(prefix)+idLength+1] + secret,
	} {
		k, err := r.Authenticate(header)
		require.Nil(t, k, header)
		require.Equal(t, errUnauthorized, err, "every refusal is the same")
	}
}

func TestKeysAreNeverTheSame(t *testing.T) {
	a, ea := NewKey("x")
	b, eb := NewKey("x")
	require.NotEqual(t, a, b)
	require.NotEqual(t, ea.ID, eb.ID)
	require.NotContains(t, ea.Hash, a[len(prefix)+idLength+1:])
}

func TestAFileIsReadAgainAndABrokenOneIsNot(t *testing.T) {
	first, e1 := NewKey("acme")
	second, e2 := NewKey("other")
	r := ring(t, e1)
	changed, err := r.Reload(time.Now())
	require.NoError(t, err)
	require.False(t, changed)

	write(t, r.path, e1, e2)
	changed, err = r.Reload(time.Now())
	require.NoError(t, err)
	require.True(t, changed)
	_, err = r.Authenticate("Bearer " + second)
	require.NoError(t, err)

	require.NoError(t, os.WriteFile(r.path, []byte("- {id: nonsense}\n"), 0o600))
	_, err = r.Reload(time.Now())
	require.ErrorIs(t, err, ErrFile)
	_, err = r.Authenticate("Bearer " + first)
	require.NoError(t, err, "the old keys stay")

	require.NoError(t, os.Remove(r.path))
	_, err = r.Reload(time.Now())
	require.ErrorIs(t, err, os.ErrNotExist)

	write(t, r.path, e2)
	_, err = r.Reload(time.Now())
	require.NoError(t, err)
	_, err = r.Authenticate("Bearer " + first)
	require.Equal(t, errUnauthorized, err, "a key that is gone is refused")
}

func TestWatchTellsAnErrorOnce(t *testing.T) {
	_, e := NewKey("acme")
	r := ring(t, e)
	var log bytes.Buffer
	ticks := make(chan time.Time)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		Watch(ctx, ticks, r, "API keys", zerolog.New(&log))
		close(done)
	}()
	require.NoError(t, os.WriteFile(r.path, []byte("nonsense"), 0o600))
	for range 3 {
		ticks <- time.Now()
	}
	ticks <- time.Now() // taken: what the ticks before did is over
	write(t, r.path, e, Entry{ID: "0123456789ab", Tenant: "x", Hash: e.Hash})
	ticks <- time.Now()
	ticks <- time.Now()
	cancel()
	<-done
	require.Equal(t, 1, strings.Count(log.String(), "stay as they were"), log.String())
	require.Equal(t, 1, strings.Count(log.String(), "read again"), log.String())
}

func TestAFileIsCheckedAndItsHashesAreNotShown(t *testing.T) {
	secret, good := NewKey("acme")
	line := func(change func(*Entry)) string {
		e := good
		change(&e)
		text, err := e.Line()
		require.NoError(t, err)
		return text
	}
	for want, text := range map[string]string{
		"expected a list of keys":                   "keys: 3",
		"field color not found":                     "- {id: 0123456789ab, tenant: x, color: red}",
		"id: expected 12 hexadecimal digits":        line(func(e *Entry) { e.ID = "0123456789aB" }),
		"tenant: expected a name":                   line(func(e *Entry) { e.Tenant = "" }),
		"hash: expected \"sha256:\" and 64":         line(func(e *Entry) { e.Hash = secret }),
		"found 64 characters that are none":         line(func(e *Entry) { e.Hash = e.Hash[7:] }),
		"requests-per-minute: found -1, expected 0": line(func(e *Entry) { e.RequestsPerMinute = -1 }),
		"weight: found 1001, expected 0 to 1000":    line(func(e *Entry) { e.Weight = 1001 }),
		"models: found an empty name":               line(func(e *Entry) { e.Models = []string{""} }),
		"expected one that no other key has":        line(func(*Entry) {}) + line(func(*Entry) {}),
		"weight: found 2, expected 1 as of tenant \"acme\"": line(func(*Entry) {}) + line(func(e *Entry) {
			e.ID,
				e.Weight = "0123456789ab", 2
		}),
		"priority: found 2147483648, expected -2147483648 to": line(func(e *Entry) { e.Priority = 1 << 31 }),
	} {
		_, err := parseFile([]byte(text))
		require.ErrorIs(t, err, ErrFile, want)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), secret)
		require.NotContains(t, err.Error(), good.Hash[7:])
	}
	_, err := parseFile(nil)
	require.ErrorContains(t, err, "at least one key")
}

// guarded is a guard with a clock of the test's over an engine that answers each
// request with 3 tokens of usage 10, and a context with a key.
func guarded(t *testing.T, change func(*Entry)) (g *guard, e *apitest.Engine, ctx context.Context, clock *time.Time) {
	t.Helper()
	_, entry := NewKey("acme")
	change(&entry)
	r := ring(t, entry)
	k := r.Key(entry.ID)
	now := k.limiter.requests.at
	e = apitest.New(apitest.Say("a", "b", "c"))
	return &guard{Engine: e, now: func() time.Time { return now }}, e, api.WithCaller(context.Background(), k), &now
}

func request(i int) *api.Request {
	return &api.Request{ID: fmt.Sprint(i), Model: "tiny-chat", N: 1, PromptTokens: []int32{1, 2}, MaxTokens: 18}
}

// finish reads a stream to its end.
func finish(t *testing.T, s api.Stream) {
	t.Helper()
	defer s.Close()
	for {
		ev, err := s.Next(context.Background())
		require.NoError(t, err)
		if ev.Done {
			return
		}
	}
}

func refused(t *testing.T, err error, reason string, wait time.Duration) {
	t.Helper()
	var e *api.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, api.CodeOverloaded, e.Code)
	require.Equal(t, reason, e.Reason)
	require.Equal(t, wait, e.RetryAfter)
}

func TestRequestsPerMinute(t *testing.T) {
	g, _, ctx, now := guarded(t, func(e *Entry) { e.RequestsPerMinute = 3 })
	for i := range 3 {
		s, err := g.Submit(ctx, request(i))
		require.NoError(t, err)
		finish(t, s)
	}
	_, err := g.Submit(ctx, request(3))
	refused(t, err, ReasonRequests, 20*time.Second)
	*now = now.Add(20 * time.Second)
	s, err := g.Submit(ctx, request(3))
	require.NoError(t, err)
	finish(t, s)
	_, err = g.Submit(ctx, request(4))
	refused(t, err, ReasonRequests, 20*time.Second)
}

func TestTokensPerMinuteReserveAndGiveBack(t *testing.T) {
	g, _, ctx, now := guarded(t, func(e *Entry) { e.TokensPerMinute = 60 })
	s, err := g.Submit(ctx, request(1)) // reserves 2 + 18 of 60
	require.NoError(t, err)
	finish(t, s)                            // used 7 + 3: 50 are left
	first, err := g.Submit(ctx, request(2)) // 30
	require.NoError(t, err)
	second, err := g.Submit(ctx, request(3)) // 10
	require.NoError(t, err)
	_, err = g.Submit(ctx, request(4)) // lacks 10, at one a second
	refused(t, err, ReasonTokens, 10*time.Second)
	finish(t, first) // 20
	third, err := g.Submit(ctx, request(4))
	require.NoError(t, err)
	finish(t, second)
	finish(t, third) // 60 - 4 x 10
	*now = now.Add(time.Hour)
	big := request(5)
	big.MaxTokens = 1000
	s, err = g.Submit(ctx, big) // more than a minute's: goes when the bucket is full
	require.NoError(t, err)
	finish(t, s)
	require.InDelta(t, 50, s.(*stream).key.limiter.tokens.level, 1e-6)
}

// TestTokensCountAsOftenAsTheyAreComputed: those of a prompt once more for other choices than the first one with its log probabilities,
// those of an answer for each beam. The engine says 7, and 3 for each choice.
func TestTokensCountAsOftenAsTheyAreComputed(t *testing.T) {
	alternatives := 5
	for name, c := range map[string]struct {
		change         func(*api.Request)
		reserved, used int
	}{
		"choices":                         {func(r *api.Request) { r.N = 3 }, 2 + 54, 7 + 9},
		"log probabilities of the prompt": {func(r *api.Request) { r.N, r.PromptLogprobs = 3, &alternatives }, 4 + 54, 14 + 9},
		"log probabilities of the prompt of one choice": {func(r *api.Request) { r.PromptLogprobs = &alternatives }, 2 + 18, 7 + 3},
		"beams":                        {func(r *api.Request) { r.Beams = &sample.BeamParams{Width: 4} }, 2 + 72, 7 + 12},
		"beams, of which two are kept": {func(r *api.Request) { r.N, r.Beams = 2, &sample.BeamParams{Width: 4} }, 2 + 72, 7 + 12},
	} {
		t.Run(name, func(t *testing.T) {
			g, _, ctx, _ := guarded(t, func(e *Entry) { e.TokensPerMinute = 1000 })
			r := request(1)
			c.change(r)
			s, err := g.Submit(ctx, r)
			require.NoError(t, err)
			require.Equal(t, c.reserved, s.(*stream).reserved)
			finish(t, s)
			require.InDelta(t, 1000-c.used, s.(*stream).key.limiter.tokens.level, 1e-6)
		})
	}
}

func TestConcurrentRequestsAndThoseCutShort(t *testing.T) {
	g, _, ctx, _ := guarded(t, func(e *Entry) { e.Concurrent, e.TokensPerMinute = 2, 1000 })
	a, err := g.Submit(ctx, request(1))
	require.NoError(t, err)
	b, err := g.Submit(ctx, request(2))
	require.NoError(t, err)
	_, err = g.Submit(ctx, request(3))
	refused(t, err, ReasonConcurrent, time.Second)
	_, err = a.Next(ctx)
	require.NoError(t, err)
	a.Close()
	a.Close()
	c, err := g.Submit(ctx, request(3))
	require.NoError(t, err)
	_, err = g.Submit(ctx, request(4))
	refused(t, err, ReasonConcurrent, time.Second)
	finish(t, b)
	finish(t, c)
	require.InDelta(t, 1000-2*10-(2+1), a.(*stream).key.limiter.tokens.level, 1e-6, "the one cut short cost its prompt and a token")
	require.Zero(t, a.(*stream).key.limiter.running)
}

// TestAnAnswerThatBeginsAgainCostsWhatIsLeftOfIt, read to its end or cut short.
func TestAnAnswerThatBeginsAgainCostsWhatIsLeftOfIt(t *testing.T) {
	for read, answered := range []int{0, 3, 0, 1} {
		g, e, ctx, _ := guarded(t, func(e *Entry) { e.TokensPerMinute = 1000 })
		e.Script = func(_ *api.Request, s *apitest.Stream) {
			s.Send(api.Event{Tokens: []int32{1, 2, 3}})
			s.Send(api.Event{Restart: true})
			s.Send(api.Event{Tokens: []int32{1}, Finish: api.FinishStop, Done: true})
		}
		s, err := g.Submit(ctx, request(1))
		require.NoError(t, err)
		for range read {
			_, err = s.Next(ctx)
			require.NoError(t, err)
		}
		s.Close()
		require.InDelta(t, 1000-(2+answered), s.(*stream).key.limiter.tokens.level, 1e-6, "%d events read", read)
	}
}

func TestARefusalOfTheEngineCostsNoTokens(t *testing.T) {
	g, e, ctx, _ := guarded(t, func(e *Entry) { e.TokensPerMinute, e.Concurrent = 100, 1 })
	e.Refuse = func(*api.Request) error { return api.Invalid("x", "no") }
	for i := range 10 {
		_, err := g.Submit(ctx, request(i))
		require.EqualError(t, err, "no")
	}
	require.InDelta(t, 100, keyOf(ctx).limiter.tokens.level, 1e-6)
}

func TestARequestCarriesTheTenantOfItsKey(t *testing.T) {
	g, e, ctx, _ := guarded(t, func(e *Entry) { e.Weight, e.Priority = 5, 2 })
	for i, p := range []int{-7, 0, 9} {
		r := request(i)
		r.Tenant, r.Weight, r.Priority = "somebody", 900, p
		s, err := g.Submit(ctx, r)
		require.NoError(t, err)
		finish(t, s)
	}
	for i, want := range []int{2, 2, 9} {
		r := e.Requests()[i]
		require.Equal(t, []any{"acme", 5, want}, []any{r.Tenant, r.Weight, r.Priority})
	}
}

func TestAKeyUsesItsModelsOnly(t *testing.T) {
	g, _, ctx, _ := guarded(t, func(e *Entry) { e.Models = []string{"large"} })
	_, err := g.Submit(ctx, request(1))
	require.ErrorContains(t, err, `model "tiny-chat" does not exist`)
	_, err = g.Tokenize(ctx, &api.TokenizeRequest{Model: "tiny-chat", Prompt: "x"})
	require.ErrorContains(t, err, `model "tiny-chat" does not exist`)
	_, err = g.Detokenize(ctx, "tiny-chat", []int32{65})
	require.ErrorContains(t, err, `model "tiny-chat" does not exist`)
	require.Empty(t, api.Visible(ctx, g.Models()))
	require.Len(t, api.Visible(context.Background(), g.Models()), 1)
}

// TestAKeyNamesItsModelsAsRequestsDo: without the owner, the variant or the ending of the file.
func TestAKeyNamesItsModelsAsRequestsDo(t *testing.T) {
	served := []api.Model{{ID: "acme/large:Q8_0"}, {ID: "acme/small"}, {ID: "evil/small"}, {ID: "tiny"}}
	for _, c := range []struct {
		names, want []string
	}{
		{nil, []string{"acme/large:Q8_0", "acme/small", "evil/small", "tiny"}},
		{[]string{"acme/large:Q8_0"}, []string{"acme/large:Q8_0"}},
		{[]string{"acme/large"}, []string{"acme/large:Q8_0"}},
		{[]string{"large", "tiny.gguf"}, []string{"acme/large:Q8_0", "tiny"}},
		{[]string{"small"}, nil}, // of two
		{[]string{"acme/small"}, []string{"acme/small"}},
		{[]string{"acme"}, nil}, {[]string{"Q8_0"}, nil},
	} {
		g, engine, ctx, _ := guarded(t, func(e *Entry) { e.Models = c.names })
		engine.Served = served
		var got []string
		for _, m := range api.Visible(ctx, g.Models()) {
			got = append(got, m.ID)
		}
		require.Equal(t, c.want, got, "%q", c.names)
		for _, m := range served {
			_, err := g.Detokenize(ctx, m.ID, []int32{65})
			require.Equal(t, slices.Contains(c.want, m.ID), err == nil, "%q: %s: %v", c.names, m.ID, err)
		}
	}
}

func TestWithoutAKeyTheGuardServesNobody(t *testing.T) {
	g := Guard(apitest.New(apitest.Say("a")))
	_, err := g.Submit(context.Background(), request(1))
	require.Equal(t, errUnauthorized, err)
	_, err = g.Tokenize(context.Background(), &api.TokenizeRequest{})
	require.Equal(t, errUnauthorized, err)
}

func TestWhatAKeyHasUsedOutlivesTheFile(t *testing.T) {
	_, e := NewKey("acme")
	e.RequestsPerMinute = 2
	r := ring(t, e)
	k := r.Key(e.ID)
	now := k.limiter.requests.at
	require.NoError(t, k.limiter.enter(now, 0))
	e.RequestsPerMinute = 1
	write(t, r.path, e)
	_, err := r.Reload(now)
	require.NoError(t, err)
	k = r.Key(e.ID)
	require.NoError(t, k.limiter.enter(now, 0))
	refused(t, k.limiter.enter(now, 0), ReasonRequests, time.Minute)
}

func FuzzFile(f *testing.F) {
	_, e := NewKey("acme")
	line, err := e.Line()
	require.NoError(f, err)
	f.Add([]byte(line))
	f.Add([]byte("- {id: 0123456789ab, tenant: x, hash: sha256:00, models: [a, b]}\n"))
	f.Add([]byte("&a [*a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := parseFile(text)
		if err != nil {
			return
		}
		for id, e := range keys { // what is accepted is usable and survives its own line
			line, err := e.Line()
			require.NoError(t, err)
			again, err := parseFile([]byte(line))
			require.NoError(t, err, line)
			require.Equal(t, e, again[id])
		}
	})
}

func FuzzAuthenticate(f *testing.F) {
	text, e := NewKey("acme")
	path := filepath.Join(f.TempDir(), "keys.yaml")
	line, err := e.Line()
	require.NoError(f, err)
	require.NoError(f, os.WriteFile(path, []byte(line), 0o600))
	r, err := Open(path)
	require.NoError(f, err)
	f.Add("Bearer mr-0123456789ab-aaaa")
	f.Add("Bearer\t" + text[:20])
	f.Fuzz(func(t *testing.T, header string) {
		if k, err := r.Authenticate(header); err == nil && !strings.Contains(header, text) {
			t.Fatalf("%q is the key of %s", header, k.TenantName())
		}
	})
}

func keyOf(ctx context.Context) *Key { return api.CallerFrom(ctx).(*Key) }
