package node

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/compute/sample"
)

// inFlight starts streams and lets each get some tokens, of workers whose devices
// are gated.
func inFlight(t *testing.T, gateway *node, compute []*node, n, tokens int) []api.Stream {
	t.Helper()
	var streams []api.Stream
	for i := range n {
		r := tokensRequest(fmt.Sprint(i), []int32{int32(i), 7}, tokens)
		if i%3 == 2 {
			r.Beams = &sample.BeamParams{Width: 2}
		}
		s, err := gateway.Submit(context.Background(), r)
		require.NoError(t, err)
		streams = append(streams, s)
	}
	untilSteps(t, compute, 10)
	return streams
}

// untilSteps lets gated devices compute, and returns when each has made more than n steps.
func untilSteps(t *testing.T, compute []*node, n int) {
	t.Helper()
	for _, w := range compute {
		require.Eventually(t, func() bool {
			select {
			case w.device.gate <- struct{}{}:
			default:
			}
			w.device.mu.Lock()
			defer w.device.mu.Unlock()
			return w.device.steps > n
		}, patience, time.Millisecond)
	}
}

// requireAll reads the streams of inFlight to their ends: nothing is missing and
// nothing is double.
func requireAll(t *testing.T, d *testDevice, streams []api.Stream, tokens int) {
	t.Helper()
	for i, s := range streams {
		got, last, err := read(s)
		require.NoError(t, err, "stream %d", i)
		require.NoError(t, last.Err, "stream %d", i)
		require.Equal(t, api.FinishLength, last.Finish)
		if i%3 != 2 {
			require.Equal(t, expected(d, []int32{int32(i), 7}, tokens), got, "stream %d", i)
		} else {
			require.Len(t, got, tokens)
		}
		require.Equal(t, tokens, last.Usage.CompletionTokens)
	}
}

func TestAWorkerThatIsGoneWithoutAWordLosesNoStream(t *testing.T) {
	c := newTestNodes(t)
	gateway, _, _, compute := four(c, 2, gated)
	streams := inFlight(t, gateway, compute, 12, 100)
	compute[0].kill()
	compute[1].device.open1()
	requireAll(t, compute[1].device, streams, 100)
	requireClean(t, compute[1].Node, compute[1].device)
}

func TestAWorkerThatComesBackAfterItsSequencesMovedAddsNothing(t *testing.T) {
	c := newTestNodes(t)
	gateway, _, _, compute := four(c, 2, gated)
	streams := inFlight(t, gateway, compute, 12, 100)
	// As a process that is stopped: its loop waits at the gate, its reports and
	// beats do not go out.
	compute[0].members.Leave()
	require.Eventually(t, func() bool { return gateway.gateway.Sequences(compute[0].name) == 0 }, patience, time.Millisecond)
	compute[0].device.open1() // it continues, and sends what nobody waits for any more
	requireClean(t, compute[0].Node, compute[0].device)
	compute[1].device.open1()
	requireAll(t, compute[1].device, streams, 100)
}

func TestADetokenizerOrTokenizerThatIsGoneLosesNoStream(t *testing.T) {
	c := newTestNodes(t)
	gateway, tokenize, detok, compute := four(c, 1, gated)
	streams := inFlight(t, gateway, compute, 6, 60)
	c.start(nil, cluster.Detok)
	c.start(nil, cluster.Tokenize)
	gateway.sees(t, 5)
	detok.kill()
	tokenize.kill()
	gateway.sees(t, 3)
	compute[0].device.open1()
	requireAll(t, compute[0].device, streams, 60)
	requireText(t, gateway, "Once upon a time")
}

// running are the sequences of a worker.
func (n *node) running() []msg.SeqID {
	list := []msg.SeqID{}
	for _, s := range n.worker.Sequences() {
		list = append(list, s.Seq)
	}
	return list
}

// owner is the node that owns a sequence of a worker; "": it is not there.
func (n *node) owner(seq msg.SeqID) string {
	for _, s := range n.worker.Sequences() {
		if s.Seq == seq {
			return s.Owner
		}
	}
	return ""
}

func TestADetokenizerThatIsGoneLeavesSequencesWhereTheyRun(t *testing.T) {
	c := newTestNodes(t)
	gateway, _, detok, compute := four(c, 1, gated)
	streams := inFlight(t, gateway, compute, 6, 60)
	require.Eventually(t, func() bool { return len(compute[0].running()) == 6 }, patience, time.Millisecond)
	before := compute[0].running()
	second := c.start(nil, cluster.Detok)
	gateway.sees(t, 4)
	detok.kill()
	require.Eventually(t, func() bool { return gateway.gateway.Texts(second.name) == 6 }, patience, time.Millisecond)
	compute[0].device.gate <- struct{}{} // its loop comes by
	require.Equal(t, before, compute[0].running())
	compute[0].device.open1()
	requireAll(t, compute[0].device, streams, 60)
}

// TestAGatewayThatTakesARequestOverFindsItsSequences: they run on as the second gateway's.
// What the first one says of them, when it ends, counts no more.
func TestAGatewayThatTakesARequestOverFindsItsSequences(t *testing.T) {
	h := newHandover(t)
	streams := h.begin(context.Background())
	before := h.worker.running()
	require.Len(t, before, 3)
	again := h.again()
	require.Eventually(t, func() bool { return h.taken(before) }, patience, time.Millisecond)
	for _, s := range streams {
		s.Close()
	}
	require.Eventually(t, func() bool { return h.first.gateway.Sequences(h.worker.name) == 0 }, patience, time.Millisecond)
	h.goOn(before)
	require.Zero(t, h.second.gateway.Waiting(), "what runs waits for nothing")
	h.whole(again)
}

// TestAGatewayThatStopsLeavesItsSequencesToTheNext: its requests have ended there, and the worker
// has reported to it, before another gateway comes for them. No prompt is read again.
func TestAGatewayThatStopsLeavesItsSequencesToTheNext(t *testing.T) {
	h := newHandover(t)
	ctx, stop := context.WithCancelCause(context.Background())
	streams := h.begin(ctx)
	before := h.worker.running()
	require.Len(t, before, 3)
	stop(api.ErrTakenOver)
	for _, s := range streams {
		s.Close()
	}
	require.Eventually(t, func() bool { return h.first.Running() == 0 }, patience, time.Millisecond)
	h.worker.worker.Report(time.Now())
	require.NoError(t, h.first.Close(context.Background()))
	again := h.again()
	require.Eventually(t, func() bool { return h.taken(before) }, patience, time.Millisecond)
	h.goOn(before)
	h.whole(again)
}

// TestAGatewayThatTakesARequestOverGetsWhatEndedMeanwhile: nothing is computed again, log probabilities included.
func TestAGatewayThatTakesARequestOverGetsWhatEndedMeanwhile(t *testing.T) {
	h := newHandover(t)
	requests := []*api.Request{h.request(0), h.request(1)}
	requests[1].TopLogprobs = 2
	for _, r := range requests {
		_, err := h.first.Submit(context.Background(), r)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return h.worker.worker.InFlight() == 2 }, patience, time.Millisecond)
	h.first.kill()
	d := h.worker.device
	d.open1()
	require.Eventually(t, func() bool { return h.worker.worker.InFlight() == 0 }, patience, time.Millisecond)
	steps := h.worker.worker.Steps()
	for i, r := range requests {
		again := *r
		had := expected(d, r.PromptTokens, 2)
		again.ID, again.First, again.Takeover = r.ID+".1", r.ID, &api.Progress{Choices: []api.ChoiceProgress{{Tokens: had}}}
		s, err := h.second.Submit(context.Background(), &again)
		require.NoError(t, err)
		got := had
		for last := (api.Event{}); !last.Done; {
			last, err = s.Next(t.Context())
			require.NoError(t, err)
			require.NoError(t, last.Err)
			require.Len(t, last.Logprobs, i, "log probabilities for each token of the second one")
			got = append(got, last.Tokens...)
		}
		require.Equal(t, expected(d, r.PromptTokens, handoverTokens), got)
	}
	require.Equal(t, steps, h.worker.worker.Steps())
}

// TestALaterRequestWithTheSameIDDoesNotGetAnEarlierAnswer, though its prompt is the same.
func TestALaterRequestWithTheSameIDDoesNotGetAnEarlierAnswer(t *testing.T) {
	c := newTestNodes(t)
	gateway, _, _, compute := four(c, 1, nil)
	ask := func(id, first string) (steps uint64) {
		r := tokensRequest(id, []int32{7, 7}, 20)
		r.First = first
		before := compute[0].worker.Steps()
		s, err := gateway.Submit(context.Background(), r)
		require.NoError(t, err)
		_, last, err := read(s)
		require.NoError(t, err)
		require.Equal(t, api.FinishLength, last.Finish)
		return compute[0].worker.Steps() - before
	}
	require.GreaterOrEqual(t, ask("r", ""), uint64(20))
	require.GreaterOrEqual(t, ask("r.1", "r"), uint64(20))
}

// TestWhatIsFoundWhileThePromptIsTokenizedIsTakenOverThen: it need not be found again.
func TestWhatIsFoundWhileThePromptIsTokenizedIsTakenOverThen(t *testing.T) {
	c := newTestNodes(t)
	first, tokenize, _, compute := four(c, 1, gated)
	second := c.start(nil, cluster.Gateway)
	second.sees(t, 4)
	d := compute[0].device
	r := tokensRequest("r", nil, handoverTokens)
	r.Prompt = "Once upon a time"
	_, err := first.Submit(context.Background(), r)
	require.NoError(t, err)
	d.gate <- struct{}{} // its prompt
	require.Eventually(t, func() bool { l := compute[0].worker.Sequences(); return len(l) == 1 && l[0].Generated == 1 }, patience,
		time.Millisecond)
	running := compute[0].running()
	tokenize.conn.Close() // the second gateway does not know yet
	again := *r
	again.ID, again.First = "r.1", "r"
	s, err := second.Submit(context.Background(), &again)
	require.NoError(t, err)
	c.start(nil, cluster.Tokenize)
	require.Eventually(t, func() bool { return compute[0].owner(running[0]) == second.name }, patience, time.Millisecond)
	d.open1()
	got, last, err := read(s)
	require.NoError(t, err)
	require.Equal(t, api.FinishLength, last.Finish)
	require.Len(t, got, handoverTokens)
}

// handover is a gateway with three requests, one of them a beam search, and another one that is
// to continue them.
type handover struct {
	t                     *testing.T
	first, second, worker *node
	had                   [][]int32 // of each request, when the second one takes it over
	arrival               time.Time // of all of them
}

const handoverTokens = 60

func newHandover(t *testing.T) *handover {
	c := newTestNodes(t)
	c.dead = 2 * patience // a busy machine makes nodes silent
	first, _, _, compute := four(c, 1, gated)
	second := c.start(nil, cluster.Gateway)
	second.sees(t, 4)
	return &handover{t: t, first: first, second: second, worker: compute[0], arrival: time.Now()}
}

// begin starts the requests at the first gateway; two of them have two tokens then.
func (h *handover) begin(ctx context.Context) (streams []api.Stream) {
	h.t.Helper()
	for i := range 3 {
		s, err := h.first.Submit(ctx, h.request(i))
		require.NoError(h.t, err)
		streams = append(streams, s)
	}
	require.Eventually(h.t, func() bool {
		list, n := h.worker.worker.Sequences(), 0
		for _, s := range list {
			if s.Generated > 1 {
				n++
			}
		}
		if gate := h.worker.device.gate; len(list) == 3 && len(gate) == 0 {
			gate <- struct{}{}
		}
		return n == 2 && len(list) == 3 // and a beam search
	}, patience, time.Millisecond)
	return streams
}

func (h *handover) request(i int) *api.Request {
	r := tokensRequest(fmt.Sprint(i), []int32{int32(i), 7}, handoverTokens)
	if r.Arrival = h.arrival; i == 2 {
		r.Beams = &sample.BeamParams{Width: 2}
	}
	return r
}

// again requests the rest from the second gateway.
func (h *handover) again() (streams []api.Stream) {
	h.t.Helper()
	h.had = make([][]int32, 3)
	for i := range h.had {
		r := h.request(i)
		r.ID, r.First = r.ID+".1", r.ID
		if i < 2 {
			h.had[i] = expected(h.worker.device, r.PromptTokens, 2)
		}
		r.Takeover = &api.Progress{Choices: []api.ChoiceProgress{{Tokens: h.had[i]}}}
		s, err := h.second.Submit(context.Background(), r)
		require.NoError(h.t, err)
		streams = append(streams, s)
	}
	return streams
}

// taken says whether sequences are the second gateway's.
func (h *handover) taken(seqs []msg.SeqID) bool {
	return !slices.ContainsFunc(seqs, func(seq msg.SeqID) bool { return h.worker.owner(seq) != h.second.name })
}

// goOn: the same sequences run on in the next steps, and no others: no prompt is read again.
func (h *handover) goOn(before []msg.SeqID) {
	h.t.Helper()
	d := h.worker.device
	for range 3 {
		d.gate <- struct{}{} // the loop comes by
	}
	require.Eventually(h.t, func() bool { return len(d.gate) == 0 }, patience, time.Millisecond)
	require.Equal(h.t, before, h.worker.running())
	d.mu.Lock()
	defer d.mu.Unlock()
	require.Equal(h.t, len(before), d.prompts)
}

// whole reads the answers to their ends.
func (h *handover) whole(streams []api.Stream) {
	h.t.Helper()
	d := h.worker.device
	d.open1()
	for i, s := range streams {
		got, last, err := read(s)
		require.NoError(h.t, err)
		require.NoError(h.t, last.Err)
		require.Equal(h.t, api.FinishLength, last.Finish)
		if i < 2 {
			require.Equal(h.t, expected(d, []int32{int32(i), 7}, handoverTokens), append(h.had[i], got...))
		} else {
			require.Len(h.t, got, handoverTokens)
		}
	}
	requireClean(h.t, h.worker.Node, d)
}

// TestASequenceThatIsCancelledIsNotRedirected, not even before its end: that would be the
// new owner's.
func TestASequenceThatIsCancelledIsNotRedirected(t *testing.T) {
	d := newTestDevice(100)
	d.gate = make(chan struct{}, 1)
	p := start(t, testConfig(t, d))
	reply, got := probe(p)
	p.system.Root.Send(p.worker.PID(), &msg.Generate{
		Seq: 7, Choices: []msg.SeqID{7}, Reply: reply, Watch: reply, Detok: reply, Prompt: []int32{1}, MaxTokens: 100, Arrival: time.Now(),
	})
	require.Eventually(t, func() bool { return p.worker.Running() == 1 }, patience, time.Millisecond) // it waits at the gate
	p.system.Root.Send(p.worker.PID(), &msg.Cancel{Seq: 7})
	p.system.Root.Send(p.worker.PID(), &msg.Redirect{Seq: 7, Reply: reply, Watch: reply, Detok: reply})
	close(d.gate)
	require.Equal(t, &msg.Lost{Seq: 7, Why: msg.WorkerForgot}, receive[*msg.Lost](t, got))
}

func TestAWorkerThatHasNotASequenceToRedirectSaysSo(t *testing.T) {
	p := start(t, testConfig(t, newTestDevice(100)))
	reply, got := probe(p)
	p.system.Root.Send(p.worker.PID(), &msg.Redirect{Seq: 7, Reply: reply, Watch: reply, Detok: reply})
	require.Equal(t, &msg.Lost{Seq: 7, Why: msg.WorkerForgot}, receive[*msg.Lost](t, got))
}

func TestAWorkerSendsTheRestOfASequenceThatHasEnded(t *testing.T) {
	p := start(t, testConfig(t, newTestDevice(100)))
	reply, lost := probe(p)
	got := make(chan any, 100)
	text := p.system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		if m, ok := ctx.Message().(*msg.Tokens); ok {
			got <- m
		}
	}))
	p.system.Root.Send(p.worker.PID(), &msg.Generate{
		Seq: 7, Choices: []msg.SeqID{7}, Reply: reply, Watch: reply, Detok: text, Prompt: []int32{1}, MaxTokens: 3, Arrival: time.Now(),
	})
	var sent []msg.Token
	for len(sent) < 3 {
		sent = append(sent, receive[*msg.Tokens](t, got).Tokens...)
	}
	require.Equal(t, api.FinishLength, sent[2].Finish)
	for from, want := range [][]msg.Token{sent, sent[1:], sent[2:], {{Seq: 7, ID: -1, Index: 3, Finish: api.FinishLength}}} {
		p.system.Root.Send(p.worker.PID(), &msg.Redirect{Seq: 7, Reply: reply, Watch: reply, Detok: text, From: from})
		require.Equal(t, want, receive[*msg.Tokens](t, got).Tokens, "from %d", from)
	}
	p.system.Root.Send(p.worker.PID(), &msg.Redirect{Seq: 7, Reply: reply, Watch: reply, Detok: text, From: 4})
	require.Equal(t, &msg.Lost{Seq: 7, Why: msg.WorkerForgot}, receive[*msg.Lost](t, lost))
}

func TestWithoutAWorkerStreamsPauseUntilOneJoins(t *testing.T) {
	c := newTestNodes(t)
	gateway, _, _, compute := four(c, 1, gated)
	streams := inFlight(t, gateway, compute, 6, 60)
	compute[0].kill()
	require.Eventually(t, func() bool { return gateway.Ready() != nil }, patience, time.Millisecond)
	_, err := gateway.Submit(context.Background(), tokensRequest("new", []int32{1}, 1))
	require.ErrorContains(t, err, "no worker")
	require.Len(t, gateway.Models(), 1, "it is known")
	other := c.start(nil, cluster.Compute)
	requireAll(t, other.device, streams, 60)
}

func TestWithoutAWorkerForTooLongARequestEndsWithAClearError(t *testing.T) {
	c := newTestNodes(t)
	gateway := c.start(func(c *Config) { c.Cluster.FailoverTimeout = 300 * time.Millisecond }, cluster.Gateway, cluster.Tokenize,
		cluster.Detok)
	compute := c.start(gated, cluster.Compute)
	gateway.sees(t, 1)
	streams := inFlight(t, gateway, []*node{compute}, 1, 60)
	compute.kill()
	requireUnavailable(t, streams, "no worker was there for")
}

func TestADeviceFailureMovesSequencesToAnotherWorker(t *testing.T) {
	c := newTestNodes(t)
	for _, roles := range [][]cluster.Role{{cluster.Compute}, cluster.Roles()} {
		gateway := c.start(nil, cluster.Roles()...)
		failing := gateway
		gateway.device.mu.Lock()
		gateway.device.failAt = []int{20}
		gateway.device.mu.Unlock()
		if len(roles) == 1 { // the other one fails
			gateway.device.mu.Lock()
			gateway.device.failAt = nil
			gateway.device.mu.Unlock()
			failing = c.start(func(c *Config) { c.Model.(*testDevice).failAt = []int{20} }, roles...)
		} else {
			c.start(nil, roles...)
		}
		require.Eventually(t, func() bool { return len(gateway.members.Others()) > 0 }, patience, time.Millisecond)
		var streams []api.Stream
		for i := range 40 {
			s, err := gateway.Submit(context.Background(), tokensRequest(fmt.Sprint(i), []int32{int32(i), 7}, 100))
			require.NoError(t, err)
			streams = append(streams, s)
		}
		for i, s := range streams {
			got, last, err := read(s)
			require.NoError(t, err)
			require.NoError(t, last.Err)
			require.Equal(t, expected(gateway.device, []int32{int32(i), 7}, 100), got, "stream %d", i)
		}
		require.Eventually(t, func() bool { return failing.device.reloaded() == 1 }, patience, time.Millisecond)
	}
}

func TestADrainingWorkerHandsOverAndEnds(t *testing.T) {
	c := newTestNodes(t)
	const sequences, beams = 12, 4
	gateway, _, _, compute := four(c, 2, func(c *Config) {
		gated(c)
		c.Sched.MaxBatchSize = sequences + beams // rows: what has no place at the other worker stays
	})
	streams := inFlight(t, gateway, compute, sequences, 100)
	closed := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		closed <- compute[0].Close(ctx)
	}()
	require.Eventually(t, func() bool { return gateway.gateway.Sequences(compute[0].name) <= beams }, patience, time.Millisecond)
	compute[0].device.open1() // beam searches finish where they are
	require.NoError(t, <-closed)
	require.Equal(t, 0, compute[0].worker.InFlight())
	compute[1].device.open1()
	requireAll(t, compute[1].device, streams, 100)
	compute[0].once.Do(compute[0].conn.Close)
}

func TestTheSequencesOfADeadGatewayAreCancelled(t *testing.T) {
	c := newTestNodes(t)
	gateway, _, detok, compute := four(c, 1, gated)
	inFlight(t, gateway, compute, 6, 1000)
	gateway.kill()
	now := time.Now()
	alive := func(node string) bool { return node != gateway.name }
	w := compute[0].worker
	require.Equal(t, 6, w.InFlight())
	w.SweepOrphans(now, alive)
	w.SweepOrphans(now.Add(msg.OrphansAfter), alive)
	compute[0].device.open1()
	require.Eventually(t, func() bool { return !compute[0].members.Alive(gateway.name) }, patience, time.Millisecond)
	detok.detokenizers.Sweep(detok.system.Root, time.Now().Add(msg.OrphansAfter+time.Second), alive)
	require.Eventually(t, func() bool { return detok.detokenizers.Load() == 0 }, patience, time.Millisecond)
	requireClean(t, compute[0].Node, compute[0].device)
}
