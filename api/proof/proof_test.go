package proof_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/proof"
	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/compute/sample"
)

// answered returns a call of two choices and its answer.
func answered() (*call.Call, *call.Result) {
	p := sample.Default()
	p.Temperature, p.Seed = 0.7, 1<<63+1
	c := &call.Call{ID: "cmpl-1", Model: "tiny-chat", N: 2, Proof: true, Requests: []*api.Request{
		{ID: "cmpl-1", Model: "tiny-chat", N: 2, MaxTokens: 16, Sampling: p, Stop: []string{"a", "ü\n<"},
			Arrival: time.Unix(1700000000, 5)},
	}}
	return c, &call.Result{
		Pins: []api.Pin{{Numerics: "nn", Text: "tt", Prompt: api.HashPrompt([]int32{1, 2})}},
		Choices: []call.Choice{
			{Tokens: []int32{7, 8, 9}, Finish: api.FinishStop},
			{Finish: api.FinishLength},
		},
	}
}

// TestTheDigestIsThatOfItsDocumentedEncoding: made by another program, from the fields alone.
func TestTheDigestIsThatOfItsDocumentedEncoding(t *testing.T) {
	p := proof.Of(answered())
	require.Equal(t, &proof.Proof{
		Version: 1, Model: "tiny-chat", Created: 1700000000,
		Settings: map[string]string{
			"n": "2", "max_tokens": "16", "stop": `["a","ü\n\u003c"]`, "temperature": "0.7", "top_p": "1", "top_k": "0", "min_p": "0",
			"typical_p": "1", "repetition_penalty": "1", "presence_penalty": "0", "frequency_penalty": "0", "seed": "9223372036854775809",
		},
		Prompts: []proof.PromptProof{{Numerics: "nn", Text: "tt",
			Hash: "34fb5c825de7ca4aea6e712f19d439c1da0c92c37b423936c5f618545ca4fa1f"}},
		Choices: []proof.ChoiceProof{
			{Tokens: 3, Hash: "bcbc01a5036673e493422616677a83718edfe475d3e938b1a879903ffb2a05a0", FinishReason: "stop"},
			{Tokens: 0, Hash: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", FinishReason: "length"},
		},
		Digest: "be46781a5c923fe6690e2336c1455e58088e47ffdc4c6736efd4e88d09af5bcd",
	}, p)
	require.Equal(t, p.Digest, p.Sum())
}

func TestEventsGiveTheProofOfTheWholeAnswer(t *testing.T) {
	c, r := answered()
	rec := proof.NewRecorder(c)
	pin := r.Pins[0]
	for _, ev := range []api.Event{
		{Pin: &pin, Tokens: []int32{7}},
		{Choice: 1, Pin: &api.Pin{Text: "of a worker without a digest"}, Finish: api.FinishLength},
		{Tokens: []int32{8, 9}, Finish: api.FinishStop, Done: true},
	} {
		rec.Add(&ev, ev.Finish)
	}
	require.Equal(t, proof.Of(c, r), rec.Proof())
}

// TestWhateverDecidesTheTokensIsInTheDigest, field by field: a new field of a request has to be in one of the two lists.
func TestWhateverDecidesTheTokensIsInTheDigest(t *testing.T) {
	beams := func(change func(*sample.BeamParams)) func(*call.Call, *call.Result) {
		return func(c *call.Call, _ *call.Result) {
			c.Requests[0].Beams = &sample.BeamParams{Width: 2, LengthPenalty: 1}
			change(c.Requests[0].Beams)
		}
	}
	spec := func(change func(*grammar.Spec)) func(*call.Call, *call.Result) {
		return func(c *call.Call, _ *call.Result) {
			c.Requests[0].Grammar = &grammar.Spec{Kind: grammar.Regex, Source: "a"}
			change(c.Requests[0].Grammar)
		}
	}
	of := func(change func(*api.Request)) func(*call.Call, *call.Result) {
		return func(c *call.Call, _ *call.Result) { change(c.Requests[0]) }
	}
	changes := map[string]func(*call.Call, *call.Result){
		"nothing":             func(*call.Call, *call.Result) {},
		"Call.N":              func(c *call.Call, _ *call.Result) { c.N = 1; c.Requests = append(c.Requests, c.Requests[0]) },
		"Call.Model":          func(c *call.Call, _ *call.Result) { c.Model = "m" },
		"Request.MaxTokens":   of(func(r *api.Request) { r.MaxTokens++ }),
		"Request.Stop":        of(func(r *api.Request) { r.Stop = r.Stop[:1] }),
		"Request.StopTokens":  of(func(r *api.Request) { r.StopTokens = []int32{1, 2} }),
		"Request.IgnoreEOS":   of(func(r *api.Request) { r.IgnoreEOS = true }),
		"Request.IncludeStop": of(func(r *api.Request) { r.IncludeStop = true }),
		"Request.KeepSpecial": of(func(r *api.Request) { r.KeepSpecial = true }),
		"Request.KeepTokens":  of(func(r *api.Request) { r.KeepTokens = []string{"<think>"} }),
		"Request.Pool":        of(func(r *api.Request) { r.Pool = &api.Pool{Pooling: api.PoolNone} }),
		"Request.Beams":       beams(func(*sample.BeamParams) {}),
		"Request.Grammar":     spec(func(*grammar.Spec) {}),
		"Request.ReasoningEnd": func(c *call.Call, r *call.Result) {
			spec(func(*grammar.Spec) {})(c, r)
			c.Requests[0].ReasoningEnd = "</think>"
		},
		"Params.Temperature":       of(func(r *api.Request) { r.Sampling.Temperature = 1 }),
		"Params.TopK":              of(func(r *api.Request) { r.Sampling.TopK = 5 }),
		"Params.TopP":              of(func(r *api.Request) { r.Sampling.TopP = 0.5 }),
		"Params.MinP":              of(func(r *api.Request) { r.Sampling.MinP = 0.5 }),
		"Params.TypicalP":          of(func(r *api.Request) { r.Sampling.TypicalP = 0.5 }),
		"Params.RepetitionPenalty": of(func(r *api.Request) { r.Sampling.RepetitionPenalty = 1.5 }),
		"Params.PresencePenalty":   of(func(r *api.Request) { r.Sampling.PresencePenalty = 1.5 }),
		"Params.FrequencyPenalty":  of(func(r *api.Request) { r.Sampling.FrequencyPenalty = 1.5 }),
		"Params.LogitBias":         of(func(r *api.Request) { r.Sampling.LogitBias = map[int32]float32{5: 1, 3: -0.5} }),
		"Params.Thinking":          of(func(r *api.Request) { r.Sampling.Thinking = &sample.Thinking{Budget: 5} }),
		"Params.DRY": of(func(r *api.Request) {
			r.Sampling.DRY = &sample.DRY{Multiplier: 1, Base: 2,
				Breakers: []string{"a"}}
		}),
		"DRY.Allowed": of(func(r *api.Request) {
			r.Sampling.DRY = &sample.DRY{Multiplier: 1, Base: 2, Allowed: 1, Breakers: []string{"a"}}
		}),
		"DRY.Breakers": of(func(r *api.Request) { r.Sampling.DRY = &sample.DRY{Multiplier: 1, Base: 2, Breakers: []string{"b"}} }),
		"DRY.Last": of(func(r *api.Request) {
			r.Sampling.DRY = &sample.DRY{Multiplier: 1, Base: 2, Last: 9, Breakers: []string{"a"}}
		}),
		"Params.TopNSigma":          of(func(r *api.Request) { r.Sampling.TopNSigma = 1 }),
		"Params.XTC":                of(func(r *api.Request) { r.Sampling.XTC = sample.XTC{Probability: 0.5, Threshold: 0.1} }),
		"XTC.Threshold":             of(func(r *api.Request) { r.Sampling.XTC = sample.XTC{Probability: 0.5, Threshold: 0.2} }),
		"Params.BadWords":           of(func(r *api.Request) { r.Sampling.BadWords = []string{"a"} }),
		"Params.MinTokens":          of(func(r *api.Request) { r.Sampling.MinTokens = 5 }),
		"Params.Seed":               of(func(r *api.Request) { r.Sampling.Seed++ }),
		"BeamParams.Width":          beams(func(b *sample.BeamParams) { b.Width++ }),
		"BeamParams.LengthPenalty":  beams(func(b *sample.BeamParams) { b.LengthPenalty++ }),
		"BeamParams.Early":          beams(func(b *sample.BeamParams) { b.Early++ }),
		"Spec.Kind":                 spec(func(s *grammar.Spec) { s.Kind = grammar.Lark }),
		"Spec.Source":               spec(func(s *grammar.Spec) { s.Source = "b" }),
		"Spec.After":                spec(func(s *grammar.Spec) { s.After = "b" }),
		"Spec.SkipTo":               spec(func(s *grammar.Spec) { s.SkipTo = "b" }),
		"Spec.SkipFrom":             spec(func(s *grammar.Spec) { s.SkipFrom = "b" }),
		"Spec.Opening":              spec(func(s *grammar.Spec) { s.Opening = "b" }),
		"Spec.Compact":              spec(func(s *grammar.Spec) { s.Compact = true }),
		"Spec.WhiteSpace":           spec(func(s *grammar.Spec) { s.WhiteSpace = "b" }),
		"Spec.Optional":             spec(func(s *grammar.Spec) { s.Optional = true }),
		"Spec.Repeat":               spec(func(s *grammar.Spec) { s.Repeat = true }),
		"Pin.Numerics":              func(_ *call.Call, r *call.Result) { r.Pins[0].Numerics = "x" },
		"Pin.Text":                  func(_ *call.Call, r *call.Result) { r.Pins[0].Text = "x" },
		"Pin.Prompt":                func(_ *call.Call, r *call.Result) { r.Pins[0].Prompt = "x" },
		"a token":                   func(_ *call.Call, r *call.Result) { r.Choices[0].Tokens[1]++ },
		"a finish reason":           func(_ *call.Call, r *call.Result) { r.Choices[1].Finish = api.FinishStop },
		"a token of another choice": func(_ *call.Call, r *call.Result) { r.Choices[1].Tokens = []int32{7} },
		"the place between choices": func(_ *call.Call, r *call.Result) {
			r.Choices[0].Tokens, r.Choices[1].Tokens = nil, r.Choices[0].Tokens
		},
	}
	digests := make(map[string]string)
	for name, change := range changes {
		c, r := answered()
		change(c, r)
		p := proof.Of(c, r)
		require.Empty(t, digests[p.Digest], "%s has the digest of %s", name, digests[p.Digest])
		digests[p.Digest] = name
		whole := proof.Of(answered())
		require.Equal(t, name == "nothing", len(whole.Differences(p)) == 0, name)
	}
	// The rest does not change tokens, or stands for what is in the hash of the prompt.
	exempt := strings.Fields(`Call.ID Call.Named Call.Kind Call.Created Call.Stream Call.IncludeUsage Call.TokenIDs Call.Proof Call.Echo Call.Requests Call.Repeated
		Call.Resume Call.Ignored Call.Parsing Call.Window Call.Vectors Call.Questions
		Request.ID Request.First Request.Model Request.Tenant Request.Weight Request.CacheSalt Request.Truncate Request.Messages Request.Tools Request.TemplateArgs
		Request.ContinueFinal Request.NoGenerationPrompt Request.Prompt Request.Second Request.PromptTokens Request.TopLogprobs Request.PromptLogprobs Request.N Request.Sampling
		Request.Priority Request.Deadline Request.Arrival Request.Clock Request.Equal Request.Buffered Request.Takeover Request.ClipMaxTokens
		Params.Logprobs Params.TopLogprobs Params.Tokens Spec.Param`)
	for _, v := range []any{call.Call{}, api.Request{}, sample.Params{}, sample.BeamParams{}, grammar.Spec{}, api.Pin{}} {
		for field := range reflect.TypeOf(v).Fields() {
			name := reflect.TypeOf(v).Name() + "." + field.Name
			if changes[name] == nil {
				require.Contains(t, exempt, name, "in neither list")
			}
		}
	}
}

func TestTheTimeIsNotInTheDigest(t *testing.T) {
	c, r := answered()
	c.Requests[0].Clock = time.Unix(5, 0)
	p := proof.Of(c, r)
	require.EqualValues(t, 5, p.Created)
	require.Equal(t, proof.Of(answered()).Digest, p.Digest)
}

func TestDifferencesNameBothValues(t *testing.T) {
	c, r := answered()
	c.Requests[0].Sampling.TopK, r.Choices[0].Tokens = 5, []int32{7}
	r.Pins[0].Numerics = "mm"
	c.Requests[0].StopTokens = []int32{3}
	require.Equal(t, []string{
		`settings.stop_token_ids: found "3", expected ""`,
		`settings.top_k: found "5", expected "0"`,
		"prompts[0].numerics: found mm, expected nn",
		"choices[0].tokens: found 1, expected 3",
		"choices[0].hash: found " + api.HashPrompt([]int32{7}) + ", expected " + api.HashPrompt([]int32{7, 8, 9}),
	}, proof.Of(answered()).Differences(proof.Of(c, r)))
}
