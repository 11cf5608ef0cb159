package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/metrics/metricstest"
)

// tale repeats itself, forces many tokens, and has choices, so that samples differ.
const tale = `(Once upon a time there was a (cat|dog|red bird|blue fish)\. ){12}The end`

func guided(id, regex string, choices, maxTokens int) *api.Request {
	r := tokensRequest(id, []int32{5, 7}, maxTokens)
	r.N, r.IgnoreEOS = choices, false
	r.Sampling = sample.Params{Temperature: 1, Seed: 11}
	r.Grammar = &grammar.Spec{Kind: grammar.Regex, Source: regex, Param: "guided_regex"}
	return r
}

// choiceOf is one choice of an answer.
type choiceOf struct {
	text     string
	tokens   []int32
	logprobs []api.TokenLogprob
	finish   api.Finish
}

func choices(t *testing.T, s api.Stream, n int) []choiceOf {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	list := make([]choiceOf, n)
	for {
		e, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return list
		}
		require.NoError(t, err)
		require.NoError(t, e.Err)
		c := &list[e.Choice]
		c.text, c.tokens, c.logprobs = c.text+e.Text, append(c.tokens, e.Tokens...), append(c.logprobs, e.Logprobs...)
		if e.Finish != api.FinishNone {
			c.finish = e.Finish
		}
	}
}

func answers(t *testing.T, p api.Engine, r *api.Request) []choiceOf {
	t.Helper()
	s, err := p.Submit(context.Background(), r)
	require.NoError(t, err)
	return choices(t, s, r.N)
}

func TestAnAnswerIsWhatItsGrammarAllows(t *testing.T) {
	p := start(t, testConfig(t, newTestDevice(400)))
	list := answers(t, p, guided("a", tale, 3, 1000))
	for _, c := range list {
		require.Regexp(t, "^"+tale+"$", c.text)
		require.Equal(t, api.FinishStop, c.finish)
	}
	require.NotEqual(t, list[0].text, list[1].text)

	short := answers(t, p, guided("b", tale, 1, 9))[0]
	require.Equal(t, api.FinishLength, short.finish)
	require.Len(t, short.tokens, 9)
	require.Equal(t, list[0].tokens[:9], short.tokens)

	stopped := guided("c", tale, 1, 1000)
	stopped.Stop = []string{"time "}
	require.Equal(t, "Once upon a ", answers(t, p, stopped)[0].text)

	forever := guided("d", "(ab|cd)*", 1, 40)
	forever.IgnoreEOS = true
	require.Equal(t, api.FinishLength, answers(t, p, forever)[0].finish, "an end is not allowed while it may continue")
	forever = guided("e", "(ab|cd){3}", 1, 40)
	forever.IgnoreEOS = true
	require.Equal(t, api.FinishStop, answers(t, p, forever)[0].finish)

	penalized := guided("f", "[ab ]{20}", 1, 100)
	penalized.Sampling = sample.Params{Temperature: 0.7, TopK: 3, TopP: 0.9, MinP: 0.01, RepetitionPenalty: 1.2, PresencePenalty: 1,
		Seed:      3,
		LogitBias: map[int32]float32{4: 5}}
	require.Regexp(t, "^[ab ]{20}$", answers(t, p, penalized)[0].text)
}

func TestLogProbabilitiesUnderAGrammarAreTheModels(t *testing.T) {
	d := newTestDevice(400)
	r := guided("a", "abc", 1, 10)
	r.TopLogprobs = 2
	c := answers(t, start(t, testConfig(t, d)), r)[0]
	require.Len(t, c.logprobs, len(c.tokens))
	for _, l := range c.logprobs {
		require.Len(t, l.Top, 2)
		require.InDelta(t, -8.32, l.Top[1].Logprob, 0.1, "all but one of 4096 tokens are alike")
	}
}

// TestDraftTokensUnderAGrammarChangeNoToken: also with masks that are always late.
func TestDraftTokensUnderAGrammarChangeNoToken(t *testing.T) {
	var want []choiceOf
	accepted := 0.0
	for i, change := range []func(*Config){
		func(*Config) {},
		func(c *Config) { c.Sched.DraftRows = 8 },
		func(c *Config) { c.maskPatience = time.Nanosecond },
		func(c *Config) { c.Sched.DraftRows, c.maskPatience = 8, time.Nanosecond },
	} {
		d := newTestDevice(400)
		cfg := testConfig(t, d)
		change(&cfg)
		p := start(t, cfg)
		list := answers(t, p, guided(fmt.Sprint(i), "[xy]{200}", 2, 1000))
		if want == nil {
			want = list
		}
		require.Equal(t, want, list, "run %d", i)
		requireClean(t, p, d)
		if cfg.maskPatience == 0 && cfg.Sched.DraftRows > 0 {
			accepted += metricstest.Sum(t, cfg.Metrics.Registry(), "millrace_draft_tokens_accepted_total")
		}
	}
	require.Greater(t, accepted, 5., "draft tokens are accepted where masks are in time")
}

// TestForcedTokensSaveStepsAndChangeNoToken: with log probabilities each token has a step of its own.
func TestForcedTokensSaveStepsAndChangeNoToken(t *testing.T) {
	for _, change := range []func(*Config){
		func(*Config) {},
		func(c *Config) { c.Sched.DraftRows = 8 },
		func(c *Config) { c.maskPatience = time.Nanosecond },
		func(c *Config) { c.Sched.MaxBatchTokens = 9 }, // one forced token in a step, beside the rows that others may have
	} {
		var steps [2]int
		var lists [2][]choiceOf
		for i := range 2 {
			d := newTestDevice(400)
			cfg := testConfig(t, d)
			change(&cfg)
			p := start(t, cfg)
			r := guided(fmt.Sprint(i), tale, 3, 170)
			r.Sampling.RepetitionPenalty = 1.1
			r.TopLogprobs = i - 1
			lists[i] = answers(t, p, r)
			requireClean(t, p, d)
			steps[i] = d.steps
		}
		for c := range lists[1] {
			lists[1][c].logprobs = nil
		}
		require.Equal(t, lists[1], lists[0])
		require.Less(t, steps[0], steps[1]*3/4, "%d and %d steps", steps[0], steps[1])
	}
}

// TestAGuidedAnswerContinuesAtAnotherWorker: with two choices and draft tokens, to the same text.
func TestAGuidedAnswerContinuesAtAnotherWorker(t *testing.T) {
	want := answers(t, start(t, testConfig(t, newTestDevice(400))), guided("alone", tale, 2, 1000))
	c := newTestNodes(t)
	gateway, _, _, compute := four(c, 2, func(cfg *Config) {
		gated(cfg)
		cfg.Sched.DraftRows = 8
	})
	var streams []api.Stream
	for i := range 4 {
		s, err := gateway.Submit(context.Background(), guided(fmt.Sprint(i), tale, 2, 1000))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	untilSteps(t, compute, 8) // with draft tokens an answer may end after 20
	compute[0].kill()
	compute[1].device.open1()
	for _, s := range streams {
		require.Equal(t, want, choices(t, s, 2))
	}
	requireClean(t, compute[1].Node, compute[1].device)
}

func TestAGrammarThatCannotBeCompiledIsRefusedBeforeAnythingIsPlaced(t *testing.T) {
	d := newTestDevice(400)
	p := start(t, testConfig(t, d))
	for _, prompt := range [][]int32{{5}, nil} {
		r := guided(fmt.Sprint(prompt), "(", 1, 10)
		r.PromptTokens = prompt
		if prompt == nil {
			r.Prompt = "Once"
		}
		s, err := p.Submit(context.Background(), r)
		require.NoError(t, err)
		_, last, err := read(s)
		require.NoError(t, err)
		var refusal *api.Error
		require.ErrorAs(t, last.Err, &refusal)
		require.Equal(t, api.CodeInvalid, refusal.Code)
		require.Equal(t, "guided_regex", refusal.Param)
		require.Contains(t, refusal.Message, "unclosed group")
	}
	for _, endless := range []grammar.Spec{
		{Kind: grammar.JSONSchema, Source: `{"$ref":"#"}`},
		{Kind: grammar.JSONSchema, Source: `{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`},
		{Kind: grammar.Lark, Source: "root ::= root"}, {Kind: grammar.Lark, Source: "start: start"}, {Kind: grammar.Lark, Source: "root ::= \"a\" b\nb ::= b"}, //nolint:dupword // a rule and its name
		{Kind: grammar.Lark, Source: "start: %json {\"$ref\":\"#\"}"}, {Kind: grammar.Regex, Source: "[a&&b]"},
	} {
		r := guided(endless.Source, "", 1, 10)
		endless.Param, r.Grammar = "field", &endless
		s, err := p.Submit(context.Background(), r)
		require.NoError(t, err)
		_, last, err := read(s)
		require.NoError(t, err)
		var refusal *api.Error
		require.ErrorAs(t, last.Err, &refusal, endless.Source)
		require.Equal(t, api.CodeInvalid, refusal.Code, endless.Source)
		require.Equal(t, "field", refusal.Param)
		require.Regexp(t, "ends$|is finite$", refusal.Message)
	}
	r := guided("beams", "a", 1, 10)
	r.Beams = &sample.BeamParams{Width: 2}
	_, err := p.Submit(context.Background(), r)
	require.ErrorContains(t, err, "use_beam_search")
	require.Zero(t, d.steps)
}

// slowEngine holds back the masks of programs whose source is slow, from some mask on.
type slowEngine struct {
	grammar.Engine
	slow  string
	after int
	held  chan struct{} // receives a value for each mask that is held back
	gate  chan struct{} // closed: none is
}

func (e *slowEngine) Compile(kind grammar.Kind, source string) (grammar.Program, error) {
	p, err := e.Engine.Compile(kind, source)
	if source != e.slow || err != nil {
		return p, err
	}
	return &slowProgram{p, e}, nil
}

type slowProgram struct {
	grammar.Program
	e *slowEngine
}

func (p *slowProgram) Start() (grammar.Automaton, error) {
	a, err := p.Program.Start()
	return &slowAutomaton{a, p.e, 0}, err
}

type slowAutomaton struct {
	grammar.Automaton
	e     *slowEngine
	masks int
}

func (a *slowAutomaton) Mask(m grammar.Mask) error {
	if a.masks++; a.masks > a.e.after {
		select {
		case a.e.held <- struct{}{}:
		default:
		}
		<-a.e.gate
	}
	return a.Automaton.Mask(m)
}

// TestALateMaskDelaysItsOwnSequenceOnly: other answers, guided ones too, begin and end meanwhile. A sequence that is cancelled while it
// waits ends at once.
func TestALateMaskDelaysItsOwnSequenceOnly(t *testing.T) {
	tok, err := demoTokenizer()
	require.NoError(t, err)
	e := &slowEngine{slow: tale, after: 5, held: make(chan struct{}, 100), gate: make(chan struct{})}
	e.Engine, err = tok.Grammars()
	require.NoError(t, err)
	d := newTestDevice(400)
	cfg := testConfig(t, d)
	cfg.openGrammars = func() (grammar.Engine, error) { return e, nil }
	p := start(t, cfg)
	slow, err := p.Submit(context.Background(), guided("slow", tale, 1, 1000))
	require.NoError(t, err)
	cancelled, err := p.Submit(context.Background(), guided("cancelled", tale, 1, 1000))
	require.NoError(t, err)
	<-e.held
	<-e.held
	require.Len(t, answers(t, p, tokensRequest("plain", []int32{5}, 60))[0].tokens, 60)
	require.Equal(t, api.FinishStop, answers(t, p, guided("other", "(ab|c){9}", 1, 100))[0].finish)
	cancelled.Close()
	require.Eventually(t, func() bool { return p.Running() == 1 }, patience, time.Millisecond)
	close(e.gate)
	got := choices(t, slow, 1)
	require.Regexp(t, "^"+tale+"$", got[0].text)
	requireClean(t, p, d)
}

// TestManyGuidedAnswersShareSteps: each with its own grammar, some of them compiled while the steps run.
func TestManyGuidedAnswersShareSteps(t *testing.T) {
	d := newTestDevice(400)
	cfg := testConfig(t, d)
	cfg.Sched.DraftRows = 8
	p := start(t, cfg)
	var wg sync.WaitGroup
	for i := range 40 {
		regex := fmt.Sprintf("(number %d (is|was) here, ){2,5}.", i%7)
		s, err := p.Submit(context.Background(), guided(fmt.Sprint(i), regex, 1, 400))
		require.NoError(t, err)
		wg.Go(func() {
			if c := choices(t, s, 1)[0]; !regexp.MustCompile("^" + regex + "$").MatchString(c.text) {
				t.Errorf("%q, expected %s", c.text, regex)
			}
		})
	}
	wg.Wait()
	requireClean(t, p, d)
}

// TestAGrammarBeginsAfterReasoning: the text before it is not constrained.
func TestAGrammarBeginsAfterReasoning(t *testing.T) {
	d := newTestDevice(400)
	d.round = 0
	p := start(t, testConfig(t, d))
	free := guided("plain", "x", 1, 12)
	free.Grammar, free.IgnoreEOS, free.Sampling = nil, true, sample.Params{}
	plain := answers(t, p, free)[0]
	marker := p.cfg.Tokenizer.TokenText(plain.tokens[7])
	r := guided("after", "(yes|no)", 1, 100)
	r.Grammar.After, r.Sampling = marker, sample.Params{}
	c := answers(t, p, r)[0]
	require.Equal(t, plain.tokens[:8], c.tokens[:8])
	require.Regexp(t, "(?s)"+regexp.QuoteMeta(marker)+"(yes|no)$", c.text)
	require.Equal(t, api.FinishStop, c.finish)
}

// TestAGrammarHoldsWhereAnAnswerDoesNotReason: its first token decides.
func TestAGrammarHoldsWhereAnAnswerDoesNotReason(t *testing.T) {
	d := newTestDevice(400)
	p := start(t, testConfig(t, d))
	for seed := range uint64(6) {
		r := guided(fmt.Sprint("either", seed), "(yes|no)", 1, 40)
		r.Grammar.Opening, r.Grammar.After, r.Sampling.Seed, r.IgnoreEOS = "<think>", "</think>", seed, false
		c := answers(t, p, r)[0]
		if strings.HasPrefix(c.text, "<think>") {
			continue // the text is free
		}
		require.Regexp(t, "^(yes|no)$", c.text)
		require.Equal(t, api.FinishStop, c.finish)
	}
}

// TestAGuidedSequenceContinuesOnlyWithItsGrammarsEngine: equal numerics are not enough. A draining worker keeps it, and after a death it
// ends with an error; a request without a grammar continues.
func TestAGuidedSequenceContinuesOnlyWithItsGrammarsEngine(t *testing.T) {
	for _, drains := range []bool{true, false} {
		c := newTestNodes(t)
		gateway := front(c, soon)
		a := c.start(kind("A", "T", gated), cluster.Compute)
		gateway.sees(t, 1)
		guide := func(r *api.Request) { *r = *guided("guided", tale, 1, 1000) }
		plain, _ := flowing(t, gateway, a, nil)
		s, first := flowing(t, gateway, a, guide) // after it: steps until the other one's first token would bring this one to its end
		c.start(kind("A", "other"), cluster.Compute)
		gateway.sees(t, 2)
		if !drains {
			a.kill()
			requireNoEqual(t, s, "worker for the grammar", "text digest T")
			_, last, err := read(plain)
			require.NoError(t, err)
			require.NoError(t, last.Err)
			continue
		}
		closed := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			closed <- a.Close(ctx)
		}()
		require.Eventually(t, func() bool { return gateway.gateway.Sequences(a.name) == 1 }, patience, time.Millisecond,
			"the plain one has left")
		a.device.open1()
		require.Regexp(t, "^"+tale+"$", first.Text+choices(t, s, 1)[0].text)
		require.NoError(t, <-closed)
		a.once.Do(a.conn.Close)
	}
}
