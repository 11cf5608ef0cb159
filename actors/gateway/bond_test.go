package gateway

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster/route"
)

var roomy = modelLimits{context: 100, pool: 100, vocab: 10}

// needs is what a request's placement needs.
func needs(r *request) (numerics, text route.Bond) {
	var q route.Query
	r.bond.bind(&q)
	return q.Numerics, q.Text
}

func TestARequestIsBoundToItsPromptsTextAndToItsFirstPlace(t *testing.T) {
	r := newRequest(apiRequest(2, 5), roomy)
	require.False(t, r.bond.texts().Bound)
	require.NoError(t, r.tokenized(prompt{ids: []int32{1, 2}, text: "T"}))
	numerics, text := needs(r)
	require.Equal(t, route.Bond{}, numerics)
	require.Equal(t, route.To("T"), text, "ids of one tokenizer are for workers of its checkpoint")
	r.bond.placed("A")
	r.bond.placed("B")
	numerics, text = needs(r)
	require.Equal(t, route.To("A"), numerics, "one for all choices")
	require.Equal(t, route.Bond{}, text, "equal numerics are equal weights")
	require.Equal(t, route.To("T"), r.bond.texts())
	require.Equal(t, api.Pin{Numerics: "A", Text: "T", Prompt: api.HashPrompt([]int32{1, 2})}, r.bond.pin)
}

func TestEvenNoDigestIsOneToBeEqualTo(t *testing.T) {
	r := newRequest(apiRequest(1, 5), roomy)
	require.NoError(t, r.tokenized(prompt{ids: []int32{1}}))
	r.bond.placed("")
	numerics, _ := needs(r)
	require.Equal(t, route.To(""), numerics)
	require.Equal(t, route.To(""), r.bond.texts())
}

func TestTheFirstTokenOfAnyChoiceFixesWhatAllAreBoundTo(t *testing.T) {
	r := newRequest(apiRequest(2, 5), roomy)
	g := begin(t, r, []int32{1})
	r.bond.placed("A")
	require.False(t, r.bond.fixed)
	_, _ = r.text(&msg.Text{Seq: g[1].Seq, Token: 3, Index: 2})
	require.False(t, r.bond.fixed, "a token that did not count")
	_, _ = r.text(&msg.Text{Seq: g[1].Seq, Token: 3})
	require.True(t, r.bond.fixed)
}

func TestTheFirstEventSaysThePinAndTheFirstBehindAChange(t *testing.T) {
	r := newRequest(apiRequest(1, 5), roomy)
	nextID := seqs()
	var pins []*api.Pin
	take := func(numerics string, tokens int) {
		require.NoError(t, r.tokenized(prompt{ids: []int32{1}, text: "T"}))
		r.bond.placed(numerics)
		g := startAll(r, nextID)[0]
		for i := range tokens {
			e, v := r.text(&msg.Text{Seq: g.Seq, Token: 3, Index: i})
			require.Equal(t, taken, v)
			pins = append(pins, e.Pin)
		}
	}
	take("A", 2)
	require.NoError(t, r.again())
	take("B", 2)
	hash := api.HashPrompt([]int32{1})
	require.Equal(t, []*api.Pin{{Numerics: "A", Text: "T", Prompt: hash}, nil, {Numerics: "B", Text: "T", Prompt: hash}, nil}, pins)
}

func TestARequestThatBeginsAgainHasNothingOfBefore(t *testing.T) {
	r := newRequest(apiRequest(2, 5), roomy)
	nextID := seqs()
	require.NoError(t, r.tokenized(prompt{ids: []int32{1, 2, 3}, text: "T", eos: []int32{9}}))
	old := startAll(r, nextID)
	_, _ = r.text(&msg.Text{Seq: old[0].Seq, Token: 3, Finish: api.FinishStop})
	_, _ = r.text(&msg.Text{Seq: old[1].Seq, Token: 3})
	require.NoError(t, r.again())
	require.Equal(t, &api.Usage{}, r.usage())
	require.Empty(t, r.running())
	_, v := r.text(&msg.Text{Seq: old[1].Seq, Token: 3, Index: 1})
	require.Equal(t, ignored, v)

	require.NoError(t, r.tokenized(prompt{ids: []int32{4}, text: "U", eos: []int32{8}}))
	g := startAll(r, nextID)
	require.Len(t, g, 2, "the choice that had ended, too")
	for i := range g {
		require.Equal(t, []int32{4}, g[i].Prompt)
		require.Empty(t, g[i].Generated)
		require.Equal(t, []int32{8}, g[i].StopTokens)
		require.Equal(t, "U", g[i].Text)
		require.True(t, g[i].Migrated)
		_, _ = r.text(&msg.Text{Seq: g[i].Seq, Token: 5})
	}
	_, _ = r.text(&msg.Text{Seq: g[0].Seq, Token: -1, Index: 1, Finish: api.FinishStop})
	e, _ := r.text(&msg.Text{Seq: g[1].Seq, Token: -1, Index: 1, Finish: api.FinishStop})
	require.Equal(t, &api.Usage{PromptTokens: 1, CompletionTokens: 2}, e.Usage)
}

func TestARequestThatBeginsAgainAndAgainWithoutATokenEnds(t *testing.T) {
	r := newRequest(apiRequest(1, 5), roomy)
	for range mostResumes {
		require.NoError(t, r.tokenized(prompt{ids: []int32{1}}))
		require.NoError(t, r.again())
	}
	require.ErrorContains(t, r.again(), "started again")
}

func resumedRequest(pin api.Pin) *request {
	q := apiRequest(2, 5)
	q.Takeover = &api.Progress{Pin: pin, Choices: []api.ChoiceProgress{{Tokens: []int32{5}}, {}}}
	return newRequest(q, roomy)
}

func TestWhatAnotherProcessBeganStaysBoundToWhatItWas(t *testing.T) {
	hash := api.HashPrompt([]int32{1})
	r := resumedRequest(api.Pin{Numerics: "A", Text: "T", Prompt: hash})
	require.True(t, r.bond.fixed)
	require.Equal(t, route.To("T"), r.bond.texts(), "of the tokenizer, too")
	require.NoError(t, r.tokenized(prompt{ids: []int32{1}, text: "T"}))
	numerics, _ := needs(r)
	require.Equal(t, route.To("A"), numerics)
	g := startAll(r, seqs())
	e, v := r.text(&msg.Text{Seq: g[0].Seq, Token: 6, Index: 1})
	require.Equal(t, taken, v)
	require.Nil(t, e.Pin, "its log has it")

	fresh := apiRequest(1, 5)
	fresh.Takeover = &api.Progress{Choices: make([]api.ChoiceProgress, 1)}
	require.False(t, newRequest(fresh, roomy).bond.fixed, "nothing of it was shown: it may choose again")

	old := resumedRequest(api.Pin{})
	require.NoError(t, old.tokenized(prompt{ids: []int32{1}, text: "T"}))
	numerics, text := needs(old)
	require.False(t, numerics.Bound, "a log without digests binds nothing")
	require.Equal(t, route.To("T"), text)
}

// TestAPromptThatBecameOtherTokensEndsTheAnswer, whatever made them: a template with a clock,
// another template, another tokenizer.
func TestAPromptThatBecameOtherTokensEndsTheAnswer(t *testing.T) {
	r := resumedRequest(api.Pin{Numerics: "A", Text: "T", Prompt: api.HashPrompt([]int32{1, 2})})
	err := r.tokenized(prompt{ids: []int32{1, 3}, text: "T"})
	var e *api.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "prompt_changed", e.Reason)
	require.Equal(t, api.CodeUnavailable, e.Code)
	require.Contains(t, e.Message, "send the request again")
	require.ErrorContains(t, r.tokenized(prompt{ids: []int32{1, 2}, text: "U"}), `of text digest "U", expected "T"`)
	require.NoError(t, r.tokenized(prompt{ids: []int32{1, 2}, text: "T"}))
}

func TestASequenceIsTakenOverFromAnEqualOnly(t *testing.T) {
	pin := api.Pin{Numerics: "A", Text: "T", Prompt: api.HashPrompt([]int32{1})}
	other := func(change func(p *api.Pin)) api.Pin {
		p := pin
		change(&p)
		return p
	}
	for _, wrong := range []api.Pin{
		other(func(p *api.Pin) { p.Numerics = "B" }), other(func(p *api.Pin) { p.Numerics = "" }),
		other(func(p *api.Pin) { p.Text = "U" }), other(func(p *api.Pin) { p.Prompt = api.HashPrompt([]int32{2}) }),
	} {
		r := resumedRequest(pin)
		require.NoError(t, r.tokenized(prompt{ids: []int32{1}, text: "T"}))
		require.False(t, r.adopt(0, []msg.SeqID{30}, wrong), "%+v", wrong)
		require.True(t, r.adopt(0, []msg.SeqID{30}, pin))
	}
	fresh := newRequest(apiRequest(2, 5), roomy) // nothing of it was shown: it takes what there is
	require.NoError(t, fresh.tokenized(prompt{ids: []int32{1}, text: "T"}))
	require.False(t, fresh.adopt(0, []msg.SeqID{30}, other(func(p *api.Pin) { p.Text = "U" })))
	require.True(t, fresh.adopt(0, []msg.SeqID{30}, other(func(p *api.Pin) { p.Numerics = "B" })))
	require.False(t, fresh.adopt(1, []msg.SeqID{31}, pin), "but one kind for all choices")
}

// nodes are the nodes with tokenizers: in which order they were probed, and what became of them.
type nodes struct {
	probes     uint64
	dead, left map[string]uint64 // by node: number of the last probe before
}

func newNodes() *nodes { return &nodes{dead: map[string]uint64{}, left: map[string]uint64{}} }

func (n *nodes) probe() uint64    { n.probes++; return n.probes }
func (n *nodes) kill(node string) { n.dead[node] = n.probes }
func (n *nodes) end(node string)  { n.left[node] = n.probes }

// look checks the nodes that have a prompt, as its request does.
func (n *nodes) look(a *tried) (last bool, err error) {
	return a.gone(func(node string) bool { return n.dead[node] == 0 && n.left[node] == 0 },
		func(node string, probe uint64) bool { return n.dead[node] >= probe })
}

func TestAPromptIsNotSentToAThirdTokenizerWhenTwoDiedOfIt(t *testing.T) {
	var a tried
	n := newNodes()
	a.add("t1", n.probe())
	last, err := n.look(&a)
	require.NoError(t, err)
	require.True(t, last, "silence is not death")
	a.add("t2", n.probe())
	n.kill("t1")
	last, err = n.look(&a)
	require.NoError(t, err, "one death may be a coincidence")
	require.True(t, last, "the last one still has it")
	n.end("t2")
	last, err = n.look(&a)
	require.NoError(t, err, "nor is a goodbye")
	require.False(t, last)
	a.add("t3", n.probe())
	_, err = n.look(&a)
	require.NoError(t, err, "t1 counts once")
	n.kill("t3")
	_, err = n.look(&a)
	var e *api.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "tokenizer_died", e.Reason)
	require.Equal(t, api.CodeUnavailable, e.Code)
	require.Contains(t, e.Message, "the last at t3")
	require.Equal(t, 3, a.times)
}

// TestAPromptOutlivesTokenizersThatWereDeadBefore: nobody has noticed yet that they are, and the
// prompt is sent to one of them after the other.
func TestAPromptOutlivesTokenizersThatWereDeadBefore(t *testing.T) {
	var a tried
	n := newNodes()
	for i := range mostResumes {
		node := fmt.Sprint("t", i)
		n.probe()
		n.kill(node)
		a.add(node, n.probe())
		last, err := n.look(&a)
		require.NoError(t, err)
		require.False(t, last)
		require.Empty(t, a.nodes)
	}
	for i, node := range []string{"a", "b"} { // and then two die of it
		a.add(node, n.probe())
		n.probe() // of another prompt
		n.kill(node)
		_, err := n.look(&a)
		require.Equal(t, i == 1, err != nil)
	}
}

// TestATokenizerThatWasSentAPromptTwiceHadItTheFirstTime: it was silent, not dead.
func TestATokenizerThatWasSentAPromptTwiceHadItTheFirstTime(t *testing.T) {
	var a tried
	n := newNodes()
	for i, node := range []string{"t1", "t2"} {
		a.add(node, n.probe())
		n.kill(node)
		a.add(node, n.probe())
		_, err := n.look(&a)
		require.Equal(t, i == 1, err != nil)
	}
}

func TestAJournalBeginsAgainWhileNothingOfItWasShown(t *testing.T) {
	for _, c := range []struct {
		read     int
		buffered bool
		events   []string // then
	}{
		{0, false, []string{"new"}}, {0, true, []string{"new"}}, {1, true, []string{"old", "restart", "new"}},
		{1, false, []string{"old", "new"}},
	} {
		b := api.NewBuffer()
		s := newStream(b, nil)
		b.Append(api.Event{Text: "old"})
		var events []string
		for range c.read {
			e, err := s.Next(t.Context())
			require.NoError(t, err)
			events = append(events, e.Text)
		}
		require.Equal(t, c.read == 0 || c.buffered, b.Restart(c.buffered))
		b.Append(api.Event{Text: "new", Done: true})
		for {
			e, err := s.Next(t.Context())
			if err != nil {
				break
			}
			if e.Restart {
				e.Text = "restart"
			}
			events = append(events, e.Text)
			require.EqualValues(t, len(events), e.Seq)
		}
		require.Equal(t, c.events, events)
	}
}

func TestARequestForEqualWorkersIsBoundFromTheBeginning(t *testing.T) {
	q := apiRequest(1, 5)
	q.Equal = &api.Pin{Numerics: "A", Text: "T", Prompt: "of another prompt"}
	r := newRequest(q, roomy)
	require.True(t, r.bond.fixed)
	require.Equal(t, route.To("T"), r.bond.texts(), "before it is tokenized, too")
	require.NoError(t, r.tokenized(prompt{ids: []int32{1}, text: "T"}))
	numerics, _ := needs(r)
	require.Equal(t, route.To("A"), numerics)
	r.bond.placed("B")
	require.Equal(t, &api.Pin{Numerics: "A", Text: "T", Prompt: api.HashPrompt([]int32{1})}, r.bond.tell(), "the first event says it")
	require.ErrorContains(t, newRequest(q, roomy).tokenized(prompt{ids: []int32{1}, text: "U"}), "text digest")
}
