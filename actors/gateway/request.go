package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/detok"
)

// request is the state machine of one request, driven by requestActor: it
// turns what arrives into events of its buffer and into messages to send.
//
// It keeps the tokens of every choice, so that a choice that lost its worker continues
// elsewhere, after them, as a new sequence: the sampler
// draws by (seed, position) and a row does not depend on its batch, so the tokens
// are those that would have come. What still comes of the old sequence is unknown
// by then and ignored.
type request struct {
	api      *api.Request
	limits   modelLimits
	bond     bond
	prompt   []int32
	second   int // where the second text of a pair begins in it
	thought  tools.Thought
	texts    *sample.TextTokens // of the sampling parameters
	answers  *answers           // nil: the request has no api.Pool.Answers
	limit    int                // tokens of a choice
	stop     []int32
	choices  []choice
	open     int  // choices that have not ended
	each     int  // choices of one sequence: a beam search answers all of them
	resumes  int  // since the last new token
	migrated bool // another worker or process had it before
	started  bool
	short    *shortening // nil: the chat is whole
	dropped  int         // messages that left the chat
	cached   int         // least tokens of the prompt that a worker had when a choice began; -1 before the first token of any
	done     bool
}

type choice struct {
	seq        msg.SeqID // 0: none, the choice waits to be started
	tokens     []int32
	ended      bool
	redirected bool // since the last new token
}

// needs returns the tokens that a worker needs memory for at first. A beam search gets memory for all of its answer at once.
func (r *request) needs() int {
	answer := usualAnswer
	if r.api.Beams != nil {
		answer = r.limit
	}
	for i := range r.choices {
		answer = max(answer, len(r.choices[i].tokens))
	}
	return len(r.prompt) + min(r.limit, answer, r.end()-len(r.prompt))
}

// usualAnswer is how many tokens of an answer count for the memory that a sequence needs at first. Workers predict the length
// of an answer, and few answers have the declared one: counted with it, every worker would be full for a request without a limit.
const usualAnswer = 256

// end is the number of tokens of a sequence at its declared end.
func (r *request) end() int {
	if r.limits.rows > 0 { // nothing follows
		return len(r.prompt)
	}
	return len(r.prompt) + r.limit
}

// firstTokens is the room that a choice has for its tokens from the beginning.
const firstTokens = 256

// mostResumes bounds how often a request continues elsewhere without a new token
// in between: it might be what brings the workers down.
const mostResumes = 10

// modelLimits are the lengths that the pipeline can serve, in tokens, and the
// tokens that there are.
type modelLimits struct {
	context    int    // of the model
	shortened  string // see api.WeightFacts
	pool       int    // that the whole KV pool holds
	single     int    // of the longest sequence without beams, which may be longer than the pool; 0: pool
	slabTokens int    // of its slabs
	vocab      int
	rows       int // of a step, of an encoder, which computes a text in one; 0: it is none
}

func newRequest(r *api.Request, lim modelLimits) *request {
	q := &request{api: r, limits: lim, bond: bondOf(r), each: 1, cached: -1, migrated: r.Takeover != nil}
	if r.Beams != nil {
		q.each = r.N
	}
	return q
}

// space is the part of the prefix cache that the request reads and feeds.
func (r *request) space() string { return api.CacheSpace(r.api.Tenant, r.api.CacheSalt) }

// known are the tokens of a choice: its prompt and its answer.
func (r *request) known(c int) []int32 { return slices.Concat(r.input(), r.choices[c].tokens) }

// input is the prompt of the sequences that are to be started.
func (r *request) input() []int32 {
	if path := r.answers.path(); len(path) > 0 {
		return slices.Concat(r.prompt, path)
	}
	return r.prompt
}

// prompt is what a tokenizer made of one, and what its files say.
type prompt struct {
	ids    []int32
	second int
	text   string  // digest
	eos    []int32 // end-of-sequence tokens
	// thought is what the end of the prompt says of reasoning.
	thought tools.Thought
	// texts are the tokens of the texts in the sampling parameters.
	texts *sample.TextTokens
	// answers are the tokens of api.Pool.Answers.
	answers [][]int32
}

// tokenized takes the prompt. The request's choices are to be started then; those
// that another process had ended are not. An error ends the request.
func (r *request) tokenized(p prompt) error {
	ids := p.ids
	if err := checkVocab(r.api, ids, r.limits.vocab); err != nil {
		return err
	}
	if r.api.Truncate && r.api.Messages == nil {
		ids = r.truncated(ids)
	}
	r.answers = nil
	if texts := r.api.Pool.Texts(); len(texts) > 0 {
		if p.thought == tools.Opened {
			return api.Invalid("model",
				"model %q reasons before it answers, and its chat template cannot turn that off: the answer does not follow the prompt",
				r.api.Model)
		}
		var err error
		if r.answers, err = newAnswers(texts, p.answers, r.limits.vocab); err != nil {
			return err
		}
	}
	limit, err := r.tokenLimit(len(ids) + r.answers.longest())
	if err != nil {
		return err
	}
	if had := r.api.Takeover; had != nil && len(had.Choices) != r.api.N {
		return api.Invalid("resume", "progress of %d choices, expected %d, one for each (n)", len(had.Choices), r.api.N)
	}
	if err := r.bond.prompted(ids, p.text); err != nil {
		return err
	}
	r.prompt, r.second, r.limit, r.started, r.thought = ids, p.second, limit, true, p.thought
	r.texts = p.texts
	r.stop, r.open = r.api.StopTokens, 0
	if !r.api.IgnoreEOS || r.api.Grammar != nil { // a grammar ends nowhere else
		r.stop = append(append([]int32(nil), r.stop...), p.eos...)
	}
	r.choices = make([]choice, r.api.N)
	for i := range r.choices {
		c := &r.choices[i]
		c.tokens = make([]int32, 0, min(limit, firstTokens))
		if r.api.Takeover != nil {
			had := &r.api.Takeover.Choices[i]
			c.tokens = append(c.tokens, had.Tokens...)
			c.ended = had.Finish != api.FinishNone
		}
		if !c.ended {
			r.open++
		}
	}
	return nil
}

// truncated keeps the first tokens that fit. A text for an encoder keeps its last one too, the special token that ends it.
func (r *request) truncated(ids []int32) []int32 {
	if r.limits.rows == 0 {
		return ids[:min(r.limits.longest()-1, len(ids))]
	}
	most := r.limits.text()
	if len(ids) <= most {
		return ids
	}
	return append(ids[:most-1:most-1], ids[len(ids)-1])
}

// resumed returns the end of a request whose choices another process had all ended; false if
// there is something to do.
func (r *request) resumed() (end api.Event, over bool) {
	if r.open > 0 {
		return end, false
	}
	r.done = true
	return api.Event{Pin: r.bond.tell(), Done: true, Usage: r.usage()}, true
}

// waiting lists the first choice of every sequence that is to be started.
func (r *request) waiting() []int {
	var list []int
	for i := 0; i < len(r.choices) && !r.done; i += r.each {
		if r.group(i).waiting() {
			list = append(list, i)
		}
	}
	return list
}

// group is the choices of one sequence.
type group []choice

func (r *request) group(i int) group { return r.choices[i : i+r.each] }

func (g group) waiting() bool {
	open := false
	for i := range g {
		if g[i].seq != 0 {
			return false
		}
		open = open || !g[i].ended
	}
	return open
}

// start makes a new sequence of a choice of waiting, after the tokens that the
// choice has: what to open at the detokenizer, and what to generate.
func (r *request) start(first int, nextID func() msg.SeqID) (*msg.Generate, []*msg.OpenText) {
	g := r.group(first)
	params := r.api.Sampling
	params.Seed += uint64(first) // choices differ, and the request stays reproducible
	params.Thinking, params.Tokens = r.thinking(), r.texts
	if r.api.TopLogprobs >= 0 {
		params.Logprobs, params.TopLogprobs = true, r.api.TopLogprobs
	}
	gen := &msg.Generate{
		First: first, RequestID: r.api.OriginKey(), Text: r.bond.pin.Text, Prompt: r.input(), Second: r.second, MaxTokens: r.limit,
		StopTokens: r.stop, Sampling: params, Pool: r.answers.pool(r.api.Pool), Beams: r.api.Beams, Grammar: r.grammar(),
		Longest: r.api.IgnoreEOS, Tenant: r.api.Tenant, CacheSalt: r.api.CacheSalt, Weight: r.api.Weight, Migrated: r.migrated,
		Priority: r.api.Priority, Deadline: r.api.Deadline, Arrival: r.api.Arrival,
	}
	if r.answers != nil && r.answers.done > 0 { // a worker has admitted the request with its first read
		gen.Migrated = true
	}
	if first == 0 && len(g[0].tokens) == 0 { // the other choices have the same prompt; and after a token its client has them
		gen.Scored = r.api.PromptLogprobs
	}
	var open []*msg.OpenText
	for i := range g {
		g[i].seq = nextID()
		gen.Choices = append(gen.Choices, g[i].seq)
		text := r.openText(&g[i])
		if r.api.Beams == nil {
			gen.Generated = append([]int32(nil), g[i].tokens...)
			gen.MaxTokens = max(gen.MaxTokens, len(gen.Generated)) // a worker with less room has come meanwhile
		}
		open = append(open, text)
	}
	gen.Seq = gen.Choices[0]
	return gen, open
}

// thinking is the bound of the answer's reasoning. The end of the prompt says whether it has begun, or will not.
func (r *request) thinking() *sample.Thinking {
	t := r.api.Sampling.Thinking
	if t == nil || r.thought == tools.Closed {
		return nil
	}
	bound := *t
	bound.Begun = r.thought == tools.Opened
	return &bound
}

// grammar is that of the answer. It begins after the reasoning, if there is any: the prompt says so, or else the beginning of the answer.
func (r *request) grammar() *grammar.Spec {
	switch s := r.api.Grammar; {
	case s == nil:
		return nil
	case s.SkipTo != "":
		return skipped(s, r.thought)
	case s.Opening != "":
		return opened(s, r.thought)
	case s.After == "" && r.thought == tools.Opened:
		after := *s
		after.After = r.api.ReasoningEnd
		return &after
	default:
		return s
	}
}

// opened is a grammar after reasoning that may come: where the prompt opens it, the answer begins inside; where the prompt ends it, there
// is none.
func opened(s *grammar.Spec, thought tools.Thought) *grammar.Spec {
	after := *s
	switch thought {
	case tools.Opened:
		after.Opening = ""
	case tools.Closed:
		after.Opening, after.After = "", ""
	case tools.Unsaid:
	}
	return &after
}

// skipped is a grammar that skips reasoning: where the prompt opens it, from the beginning of the answer; not at all where the prompt ends
// it.
func skipped(s *grammar.Spec, thought tools.Thought) *grammar.Spec {
	after := *s
	switch thought {
	case tools.Opened:
		after.SkipFrom = ""
	case tools.Closed:
		after.SkipFrom, after.SkipTo = "", ""
	case tools.Unsaid:
	}
	return &after
}

// openText makes a detokenizer continue after the tokens that a choice has.
func (r *request) openText(c *choice) *msg.OpenText {
	m := &msg.OpenText{Seq: c.seq, Options: detok.Options{
		Stop: r.api.Stop, IncludeStop: r.api.IncludeStop, KeepSpecial: r.api.KeepSpecial, Keep: r.api.KeepTokens,
	}}
	if r.api.Beams == nil { // a beam search sends the whole answer again
		m.History = append([]int32(nil), c.tokens...)
	}
	if n := len(m.History); n > 0 && !r.api.IncludeStop && slices.Contains(r.stop, m.History[n-1]) {
		m.History = m.History[:n-1] // it is not part of the text, and only the end follows it
	}
	return m
}

// adopt takes over the sequence of choices that wait to be started; false if they do not, or
// if it was begun with another prompt or elsewhere than at an equal.
func (r *request) adopt(first int, seqs []msg.SeqID, pin api.Pin) bool {
	if r.done || first%r.each != 0 || first >= len(r.choices) || len(seqs) != r.each || !r.group(first).waiting() || !r.bond.admits(pin) {
		return false
	}
	r.bond.placed(pin.Numerics)
	for i := range seqs {
		r.choices[first+i].seq = seqs[i]
	}
	return true
}

// redirects says whether a worker can send tokens again: not with the log probabilities of the prompt,
// which it does not keep.
func (r *request) redirects() bool { return r.api.PromptLogprobs == nil }

// whole reports whether each worker computes the whole prompt.
func (r *request) whole() bool { return r.api.Pool.Whole() || r.api.PromptLogprobs != nil }

// mayRedirect says whether the texts of a sequence may be opened at another detokenizer
// while it runs on. Once it was redirected it needs a new token first: else that did not
// help, and the sequence is lost.
func (r *request) mayRedirect(seq msg.SeqID) bool {
	i := r.choice(seq)
	return i >= 0 && !r.done && !r.choices[i].ended && !r.choices[i].redirected && r.redirects()
}

// redirect lists the texts of a sequence to open at another detokenizer. Its worker is to
// send the tokens from index from on again.
func (r *request) redirect(seq msg.SeqID) (open []*msg.OpenText, from int) {
	i := r.choice(seq)
	g := r.group(i - i%r.each)
	for k := range g {
		g[k].redirected = true
		if !g[k].ended {
			open = append(open, r.openText(&g[k]))
		}
	}
	return open, len(open[0].History)
}

// lost takes back the sequence that seq is of, if it is one of the request's: its
// choices wait to be started again. It returns the first of them, -1 if there are
// none. An error ends the request.
func (r *request) lost(seq msg.SeqID, why string) (first int, err error) {
	i := r.choice(seq)
	if i < 0 || r.done || r.choices[i].ended {
		return -1, nil
	}
	if err := r.moves(why); err != nil {
		return -1, err
	}
	first = i - i%r.each
	g := r.group(first)
	for i := range g {
		g[i].seq, g[i].redirected = 0, false
	}
	return first, nil
}

// moves counts a further start.
func (r *request) moves(why string) error {
	if r.resumes++; r.resumes > mostResumes {
		return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf(
			"the request migrated %d times without a new token in between, the last time: %s", mostResumes,
			strings.ReplaceAll(why, "_", " "))}
	}
	r.migrated = true
	return nil
}

// again makes all choices begin again from their prompt, which is tokenized again:
// nothing of them was shown. An error ends the request.
func (r *request) again() error {
	if err := r.moves(startedAgain); err != nil {
		return err
	}
	r.bond.again()
	r.started, r.prompt, r.choices, r.open, r.cached = false, nil, nil, 0, -1
	return nil
}

// longest is the most tokens of a sequence without beams.
func (m modelLimits) longest() int {
	return min(m.context, cmp.Or(m.single, m.pool))
}

// cause is what bounds a sequence.
func (m modelLimits) cause() string {
	if m.shortened != "" && m.longest() == m.context {
		return fmt.Sprintf("sequences are shorter here than the model's: %s", m.shortened)
	}
	return fmt.Sprintf("context of the model %d tokens, KV memory for %d", m.context, m.pool)
}

// text is the most tokens of a text for an encoder.
func (m modelLimits) text() int { return min(m.longest(), m.rows) }

// tokenLimit is the number of tokens that may be generated after a prompt.
func (r *request) tokenLimit(prompt int) (int, error) {
	if prompt == 0 {
		return 0, api.Invalid("prompt", "the prompt has no tokens, expected at least 1")
	}
	longest := r.limits.longest()
	if rows := r.limits.rows; rows > 0 {
		if most := r.limits.text(); prompt > most {
			return 0,
				api.TooLong("prompt",
					"the text has %d tokens, expected at most %d: an encoder computes a text in one step (rows of a step %d, context of the model %d tokens)",
					prompt, most, rows, longest)
		}
		return 1, nil
	}
	left := longest - prompt
	if r.api.Beams != nil {
		left = r.limits.beamLimit(r.api, prompt)
	}
	if left < 1 && r.api.Beams != nil {
		return 0, api.Invalid("prompt", "a prompt of %d tokens with %d beams leaves no room for an answer (%s)", prompt, r.api.Beams.Width,
			r.limits.cause())
	}
	if left < 1 {
		return 0, api.TooLong("prompt", "the prompt has %d tokens, expected fewer than %d (%s)", prompt, longest, r.limits.cause())
	}
	if r.api.MaxTokens > left && !r.api.ClipMaxTokens {
		return 0, api.TooLong("max_tokens", "max_tokens is %d after a prompt of %d tokens, expected at most %d (%s)", r.api.MaxTokens,
			prompt, left,
			r.limits.cause())
	}
	left, err := logprobsOf(r.api).limit(r.api, prompt, left)
	if err != nil || r.api.MaxTokens == 0 {
		return left, err
	}
	return min(r.api.MaxTokens, left), nil
}

// running lists the sequences that have not ended.
func (r *request) running() []msg.SeqID {
	var ids []msg.SeqID
	for i := 0; i < len(r.choices); i += r.each {
		g := r.group(i)
		for k := range g {
			if !g[k].ended && g[k].seq != 0 {
				ids = append(ids, g[0].seq)
				break
			}
		}
	}
	return ids
}

func (r *request) choice(seq msg.SeqID) int {
	if seq == 0 {
		return -1
	}
	for i := range r.choices {
		if r.choices[i].seq == seq {
			return i
		}
	}
	return -1
}

// promptOf is what is to be tokenized of a request without token ids.
func promptOf(r *api.Request) *api.TokenizeRequest {
	return &api.TokenizeRequest{
		Model: r.Model, Prompt: r.Prompt, Second: r.Second, AddSpecialTokens: true, Truncate: r.Truncate, Messages: r.Messages,
		Tools: r.Tools, TemplateArgs: r.TemplateArgs, ContinueFinal: r.ContinueFinal, NoGenerationPrompt: r.NoGenerationPrompt,
		Clock: r.TemplateClock(),
	}
}

// checkVocab refuses tokens that the model does not have.
func checkVocab(r *api.Request, prompt []int32, vocab int) error {
	for _, list := range []struct {
		param string
		ids   []int32
	}{{"prompt", prompt}, {"stop_token_ids", r.StopTokens}, {"pooling", pooled(r.Pool)}} {
		for i, id := range list.ids {
			if id < 0 || int(id) >= vocab {
				return api.Invalid(list.param, "%s: token %d is %d, the model has 0..%d", list.param, i, id, vocab-1)
			}
		}
	}
	if err := r.Sampling.ValidateVocab(vocab); err != nil {
		return api.Invalid("logit_bias", "%v", err)
	}
	return nil
}

// pooled are the tokens whose logits a request reads.
func pooled(p *api.Pool) []int32 {
	if p == nil {
		return nil
	}
	return p.Tokens
}
