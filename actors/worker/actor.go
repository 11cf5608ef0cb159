package worker

import (
	"fmt"
	"slices"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
)

// computeActor is the mailbox of the goroutine that owns the device: it hands
// over the messages and never waits for a step.
type computeActor struct {
	loop *loop
	held map[msg.SeqID][]any // messages to sequences whose keys and values are on their way from another worker
}

func (a *computeActor) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *msg.Generate:
		if !a.accept(m) || a.imports(ctx, m) {
			return
		}
	case *msg.Imported:
		a.imported(m)
		return
	case *msg.Find:
		for _, found := range a.loop.inFlight.find(m.RequestID, a.loop.Numerics) {
			found.Compute = ctx.Self()
			ctx.Send(m.Reply, found)
		}
		return
	case *msg.Redirect:
		a.loop.inFlight.own(m.Seq, m.Watch)
		if a.hold(m.Seq, m) {
			return
		}
	case *msg.Cancel:
		if m.Owner != "" && a.loop.inFlight.ofAnother(m.Seq, m.Owner) {
			return
		}
		if a.hold(m.Seq, m) {
			return
		}
	case *msg.KVRound, *msg.KVReady, *msg.KVMoved:
	default:
		return
	}
	a.loop.inbox.push(ctx.Message())
}

// accept makes the entry of a sequence; false if the loop is not to see it.
func (a *computeActor) accept(g *msg.Generate) bool {
	if err := checkTokens(g, a.loop.Runner.Vocab()); err != nil { // of a gateway that knows another model
		for _, seq := range g.Choices {
			a.loop.sendTokens(g.Detok, &msg.Tokens{Tokens: []msg.Token{{Seq: seq, ID: -1, Index: len(g.Generated), Finish: api.FinishError, Err: err}}})
		}
		return false
	}
	if finish := over(g); finish != api.FinishNone {
		for _, seq := range g.Choices {
			a.loop.sendTokens(g.Detok, &msg.Tokens{Tokens: []msg.Token{{Seq: seq, ID: -1, Index: len(g.Generated), Finish: finish}}})
		}
		return false
	}
	if !a.loop.inFlight.open(g) {
		a.loop.Log.Warn().Uint64("seq", uint64(g.Seq)).Msg("a sequence came twice")
		return false
	}
	return true
}

// over is how a sequence ended of which only the end was lost, FinishNone if it continues.
func over(g *msg.Generate) api.Finish {
	n := len(g.Generated)
	switch {
	case n > 0 && slices.Contains(g.StopTokens, g.Generated[n-1]):
		return api.FinishStop
	case n >= g.MaxTokens:
		return api.FinishLength
	}
	return api.FinishNone
}

// checkTokens refuses what kernels would read out of bounds with.
func checkTokens(g *msg.Generate, vocab int) error {
	lists := [][]int32{g.Prompt, g.Generated}
	if g.Pool != nil {
		lists = append(lists, g.Pool.Tokens)
	}
	for _, ids := range lists {
		for i, id := range ids {
			if id < 0 || int(id) >= vocab {
				return &api.Error{Code: api.CodeInternal, Message: fmt.Sprintf("token %d of the sequence is %d, this worker's model has 0..%d", i, id, vocab-1)}
			}
		}
	}
	return nil
}
