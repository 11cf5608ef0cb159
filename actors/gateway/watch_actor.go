package gateway

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
)

// watchActor gets the reports of workers.
type watchActor struct {
	node   string        // name of this process
	stall  time.Duration // of a step
	watch  *watch
	routes *routing
}

func (a *watchActor) Receive(ctx actor.Context) {
	m, ok := ctx.Message().(*msg.Progress)
	if !ok {
		return
	}
	var others takers
	if m.InStep > a.stall {
		others = a.routes.takers(m.Node)
	}
	losses, strangers := a.watch.report(time.Now(), m, others)
	for _, t := range losses {
		ctx.Send(t.request, t.lost)
	}
	worker := actor.NewPID(m.Node, msg.ComputeActor)
	for _, seq := range strangers {
		ctx.Send(worker, &msg.Cancel{Seq: seq, Owner: a.node})
	}
}

// clusterView is the watch's view of the cluster.
type clusterView struct {
	Membership
	routes *routing
}

func (v clusterView) leave(node string) takers { return v.routes.leaves(node) }
func (v clusterView) moves(node string) bool   { return v.routes.moves(node) }
