package detok

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/tokenizer"
	"github.com/millrace/millrace/tracing"
)

// patience bounds what must happen soon: only a failing test waits for it.
const patience = 20 * time.Second

// detokTest is a detokenizer whose texts go to the test.
type detokTest struct {
	*detokActor
	t          *testing.T
	root       *actor.RootContext
	pid, reply *actor.PID
	got        chan *msg.Text
}

func newDetokTest(t *testing.T) *detokTest {
	tok, err := tokenizer.Load("../../models/tiny-chat")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tok.Close()) })
	system := actor.NewActorSystem()
	t.Cleanup(system.Shutdown)
	cfg := Config{Tokenizer: tok, Stage: metrics.New(metrics.Build{}).Stage("detok"), Tracer: tracing.Off()}
	d := &detokTest{detokActor: newDetokActor(&cfg, new(atomic.Int64)), t: t, root: system.Root, got: make(chan *msg.Text, 100)}
	d.pid = d.root.Spawn(actor.PropsFromProducer(func() actor.Actor { return d.detokActor }))
	d.reply = d.root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		if m, ok := ctx.Message().(*msg.Text); ok {
			d.got <- m
		}
	}))
	return d
}

func (d *detokTest) send(m any) { d.root.Send(d.pid, m) }

func (d *detokTest) text() *msg.Text {
	d.t.Helper()
	select {
	case m := <-d.got:
		return m
	case <-time.After(patience):
		d.t.Fatal("no text")
	}
	panic("unreachable")
}

func TestADetokenizerPassesOnHowMuchOfThePromptWasCached(t *testing.T) {
	d := newDetokTest(t)
	d.send(&msg.OpenText{Seq: 1, Reply: d.reply, Compute: d.reply})
	d.send(&msg.Tokens{Tokens: []msg.Token{{Seq: 1, ID: 300, Cached: 48}}})
	require.EqualValues(t, 48, d.text().Cached)
}

func TestADetokenizerThatPanicsAnswersEverySequenceOfItsMessageAndServesOn(t *testing.T) {
	d := newDetokTest(t)
	broken := func() *openText { return &openText{reply: d.reply, compute: d.reply, span: noop.Span{}} } // without a stream
	d.open[1<<40], d.open[1<<40+2] = broken(), broken()
	d.send(&msg.OpenText{Seq: 1<<40 + 1, Reply: d.reply, Compute: d.reply})
	d.send(&msg.Tokens{Tokens: []msg.Token{
		{Seq: 1 << 40, ID: 300}, {Seq: 1<<40 + 1, ID: 300}, {Seq: 1<<40 + 2, ID: 300},
	}})
	ended := map[msg.SeqID]api.Finish{}
	for range 3 {
		m := d.text()
		ended[m.Seq] = m.Finish
	}
	require.Equal(t, map[msg.SeqID]api.Finish{1 << 40: api.FinishError, 1<<40 + 1: api.FinishNone, 1<<40 + 2: api.FinishError}, ended)
	d.send(&msg.Tokens{Tokens: []msg.Token{{Seq: 1<<40 + 1, ID: 301, Index: 1, Finish: api.FinishLength}}})
	require.Equal(t, api.FinishLength, d.text().Finish, "the sequence that was whole continues after the restart")
}

func TestADetokenizerTakesTheTokenThatIsNextAndTellsOfAGap(t *testing.T) {
	d := newDetokTest(t)
	d.send(&msg.OpenText{Seq: 1, Reply: d.reply, Compute: d.reply, History: []int32{300, 301}})
	d.send(&msg.Tokens{Tokens: []msg.Token{
		{Seq: 1, ID: 304, Index: 4}, {Seq: 1, ID: 302, Index: 2}, {Seq: 1, ID: 302, Index: 2},
		{Seq: 1, ID: 303, Index: 3, Finish: api.FinishLength},
	}})
	require.Equal(t, &msg.Text{Seq: 1, Token: 304, Index: 4, Gap: true}, d.text())
	for _, id := range []int32{302, 303} {
		m := d.text()
		require.Equal(t, id, m.Token)
		require.NotEmpty(t, m.Text)
	}
	require.Empty(t, d.got)
}

// TestATextThatAnotherGatewayHasTakenOverStaysOpen though the first one closes it later.
func TestATextThatAnotherGatewayHasTakenOverStaysOpen(t *testing.T) {
	d := newDetokTest(t)
	d.send(&msg.OpenText{Seq: 1, Reply: actor.NewPID("first", "r"), Compute: d.reply})
	d.send(&msg.OpenText{Seq: 1, Reply: d.reply, Compute: d.reply, History: []int32{300}})
	d.send(&msg.CloseText{Seq: 1, Owner: "first"})
	d.send(&msg.Tokens{Tokens: []msg.Token{{Seq: 1, ID: 301, Index: 1}}})
	require.Equal(t, int32(301), d.text().Token)
	for _, owner := range []string{d.reply.Address, ""} { // a process of an earlier version names none
		d.send(&msg.CloseText{Seq: 1, Owner: owner})
		d.send(&msg.Tokens{Tokens: []msg.Token{{Seq: 1, ID: 302, Index: 2}}})
		require.Empty(t, d.got)
		d.send(&msg.OpenText{Seq: 1, Reply: d.reply, Compute: d.reply, History: []int32{300, 301}})
		require.Equal(t, int32(302), d.text().Token, "it was early for the text that is opened now")
	}
}

// TestTokensThatOvertakeTheirTextAreNotLost: they come from a worker, and it comes from a gateway.
func TestTokensThatOvertakeTheirTextAreNotLost(t *testing.T) {
	d := newDetokTest(t)
	for range mostEarly { // of a text that has ended
		d.send(&msg.Tokens{Tokens: []msg.Token{{Seq: 9, ID: 300, Index: 7}}})
	}
	d.send(&msg.Tokens{Tokens: []msg.Token{
		{Seq: 1, ID: 300}, {Seq: 2, ID: 300}, {Seq: 1, ID: 301, Index: 1, Logprob: -0.5, Top: []sample.Alternative{}},
		{Seq: 2, ID: -1, Index: 1, Finish: api.FinishCancelled},
	}})
	d.send(&msg.OpenText{Seq: 1, Reply: d.reply, Compute: d.reply, History: []int32{300}})
	d.send(&msg.Tokens{Tokens: []msg.Token{{Seq: 1, ID: 302, Index: 2, Finish: api.FinishLength}}})
	first := d.text()
	require.Equal(t, int32(301), first.Token)
	require.Len(t, first.Logprobs, 1)
	require.Equal(t, int32(302), d.text().Token)
	d.send(&msg.OpenText{Seq: 2, Reply: d.reply, Compute: d.reply})
	require.Equal(t, api.FinishNone, d.text().Finish, "the end of a cancelled sequence is of no text")
	require.Empty(t, d.got)
}

func TestATokenHasItsLogProbabilityWithoutAlternatives(t *testing.T) {
	d := newDetokTest(t)
	d.send(&msg.OpenText{Seq: 1, Reply: d.reply, Compute: d.reply})
	d.send(&msg.Tokens{Tokens: []msg.Token{{Seq: 1, ID: 300, Logprob: -0.5, Top: []sample.Alternative{}}, {Seq: 1, ID: 301, Index: 1}}})
	got := d.text().Logprobs
	require.Len(t, got, 1)
	require.Equal(t, float32(-0.5), got[0].Logprob)
	require.Empty(t, got[0].Top)
	require.Empty(t, d.text().Logprobs)
}

func TestATextThatTheLimitCutsEndsWithAWholeCharacter(t *testing.T) {
	d := newDetokTest(t)
	tok, err := tokenizer.Load("../../models/tiny-chat")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tok.Close()) })
	ids, err := tok.Encode("a👩", false)
	require.NoError(t, err)
	for finish, want := range map[api.Finish]string{api.FinishLength: "a", api.FinishStop: "a\uFFFD"} {
		d.send(&msg.OpenText{Seq: 1, Reply: d.reply, Compute: d.reply})
		text := ""
		for i, id := range ids[:len(ids)-1] {
			m := msg.Token{Seq: 1, ID: id, Index: i}
			if i == len(ids)-2 {
				m.Finish = finish
			}
			d.send(&msg.Tokens{Tokens: []msg.Token{m}})
			text += d.text().Text
		}
		require.Equal(t, want, text, finish)
	}
}
