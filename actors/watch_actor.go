package actors

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/route"
)

// watchActor gets the reports of workers.
type watchActor struct{ p *Pipeline }

func (a *watchActor) Receive(ctx actor.Context) {
	m, ok := ctx.Message().(*msg.Progress)
	if !ok {
		return
	}
	p := a.p
	var others takers
	if m.InStep > p.cfg.StallAfter {
		others = p.takers(m.Node)
	}
	troubles, strangers := p.watch.report(time.Now(), m, others)
	p.tell(troubles)
	worker := actor.NewPID(m.Node, computeName)
	for _, seq := range strangers {
		ctx.Send(worker, &msg.Cancel{Seq: seq, Owner: p.name})
	}
}

// tell has the requests of lost sequences start them again.
func (p *Pipeline) tell(list []trouble) {
	for _, t := range list {
		p.system.Root.Send(t.request, t.lost)
	}
}

// look has the watch look at silence.
func (p *Pipeline) look() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.quit:
			return
		case now := <-tick.C:
			p.refreshModels()
			troubles, again := p.watch.tick(now, p)
			p.tell(troubles)
			for _, request := range again {
				p.system.Root.Send(request, &msg.Retry{})
			}
		}
	}
}

// Deaf, Alive and leave make a Pipeline the watch's view of the cluster.
func (p *Pipeline) Deaf() bool { return p.registry.Deaf() }

// Alive says whether a process was heard lately.
func (p *Pipeline) Alive(node string) bool { return p.registry.Alive(node) }

func (p *Pipeline) leave(node string) (none takers) {
	if m := p.member(node); m == nil || !m.Draining {
		return none
	}
	return p.takers(node)
}

// takers says who else could take over what a worker has.
func (p *Pipeline) takers(node string) (t takers) {
	m := p.member(node)
	if m == nil || m.Worker == nil {
		return t
	}
	return takers{
		any:   p.usable(&route.Query{Model: m.Model}, node, p.whole(p.members(), m.Model)),
		equal: p.elsewhere(&route.Query{Model: m.Model, Numerics: route.To(m.Worker.Numerics)}, node),
	}
}

// member is a live node, this one among them.
func (p *Pipeline) member(node string) *cluster.Member {
	if node == p.name {
		own := p.offer()
		return &own
	}
	for _, m := range p.registry.Others() {
		if m.Node == node {
			return m
		}
	}
	return nil
}

// care reports what this process does for others, and ends what it did for those
// that are gone.
func (p *Pipeline) care() {
	tick := time.NewTicker(msg.ProgressEvery)
	defer tick.Stop()
	swept := time.Now()
	for {
		select {
		case <-p.quit:
			return
		case now := <-tick.C:
			if p.worker != nil {
				p.worker.Report(now)
			}
			if p.bridge != nil && !p.registry.Deaf() && now.Sub(swept) >= time.Second {
				swept = now
				p.sweepOrphans(now)
			}
		}
	}
}

// sweepOrphans ends what runs here for processes that are gone.
func (p *Pipeline) sweepOrphans(now time.Time) {
	if p.worker != nil {
		p.worker.SweepOrphans(now, p.registry.Alive)
	}
	if p.detokenizers != nil {
		p.detokenizers.Sweep(p.system.Root, now, p.registry.Alive)
	}
}
