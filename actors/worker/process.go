package worker

import (
	"fmt"
	"slices"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
)

// The inbox of the loop is the process msg.ComputeActor itself, so a message needs no goroutine between its sender and the loop.
// What the sender may not wait for a step with is done on the sender's goroutine: entries of the in-flight table, and answers to Find.
var _ actor.Process = (*inbox)(nil)

// SendUserMessage takes a message to the worker. A panic costs that message only, as that of an actor does.
func (b *inbox) SendUserMessage(_ *actor.PID, message any) {
	m := actor.UnwrapEnvelopeMessage(message)
	defer func() {
		if v := recover(); v != nil {
			b.loop.Log.Error().Str("actor", msg.ComputeActor).Interface("reason", v).Type("message", m).Msg("an actor failed")
		}
	}()
	switch m := m.(type) {
	case *msg.Generate:
		b.generate(m)
	case *msg.Imported:
		b.imported(m)
	case *msg.Find:
		list := b.loop.inFlight.find(m.RequestID, b.loop.Numerics)
		if m.End {
			list = append(list, &msg.Found{})
		}
		for _, found := range list {
			found.Compute = b.loop.self
			b.loop.Root.Send(m.Reply, found)
		}
	case *msg.Redirect:
		b.mu.Lock()
		defer b.mu.Unlock()
		b.loop.inFlight.own(m.Seq, m.Watch)
		b.hold(m.Seq, m)
	case *msg.Cancel:
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.loop.inFlight.cancels(m.Seq, m.Owner) {
			b.hold(m.Seq, m)
		}
	case *msg.KVRound, *msg.KVReady, *msg.KVMoved:
		b.push(m)
	}
}

// SendSystemMessage drops: nobody watches or stops the worker as an actor. Worker.Stop ends it.
func (b *inbox) SendSystemMessage(*actor.PID, any) {}

// Stop does nothing, as SendSystemMessage.
func (b *inbox) Stop(*actor.PID) {}

// generate gives a sequence to the loop, or requests its keys and values first.
func (b *inbox) generate(g *msg.Generate) {
	if !b.accept(g) {
		return
	}
	imports := b.loop.imports(g)
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.loop.inFlight.open(g) {
		b.loop.Log.Warn().Uint64("seq", uint64(g.Seq)).Msg("a sequence came twice")
		return
	}
	if !imports {
		b.add(g)
		return
	}
	b.held[g.Seq] = nil
	b.loop.Root.Send(b.loop.KV, &msg.Import{Reply: b.loop.self, Generate: g})
}

// accept reports whether a sequence is one for the loop. Otherwise it sends the sequence's end.
func (b *inbox) accept(g *msg.Generate) bool {
	end := msg.Token{ID: -1, Index: len(g.Generated)}
	if err := checkTokens(g, b.loop.Runner.Vocab()); err != nil { // of a gateway that knows another model
		end.Finish, end.Err = api.FinishError, err
	} else if end.Finish = over(g); end.Finish == api.FinishNone {
		return true
	}
	for _, end.Seq = range g.Choices {
		b.loop.sendTokens(g.Detok, &msg.Tokens{Tokens: []msg.Token{end}})
	}
	return false
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
				return &api.Error{Code: api.CodeInternal,
					Message: fmt.Sprintf("token %d of the sequence is %d, this worker's model has 0..%d", i, id,
						vocab-1)}
			}
		}
	}
	return nil
}
