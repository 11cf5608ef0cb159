package node

import (
	"time"

	"github.com/millrace/millrace/actors/gateway"
	"github.com/millrace/millrace/actors/worker"
	"github.com/millrace/millrace/cluster"
)

// shownRequests bounds the requests of a PipelineState.
const shownRequests = 100

// PipelineState is what the pipeline did last, for /debug/pipeline. Durations are in nanoseconds.
type PipelineState struct {
	Now      time.Time      `json:"now"`      // of this process's clock, as all times
	Node     string         `json:"node"`     // this process
	Steps    []worker.Step  `json:"steps"`    // of this process's worker, the oldest first; empty without one
	Requests []Timeline     `json:"requests"` // of this process's gateway, the oldest first; empty without one
	Nodes    []PipelineNode `json:"nodes"`    // the live processes that serve together, this one last
}

// Timeline is that of a request.
type Timeline = gateway.Timeline

// PipelineNode is a process, without its host and its addresses.
type PipelineNode struct {
	Node     string          `json:"node"`
	Roles    []cluster.Role  `json:"roles"`
	Model    string          `json:"model"` // "": a gateway
	Started  time.Time       `json:"started"`
	Draining bool            `json:"draining"`
	Requests int             `json:"requests"` // of a gateway
	Tokenize int             `json:"tokenize"` // messages in hand, as Detok
	Detok    int             `json:"detok"`
	Worker   *PipelineWorker `json:"worker,omitempty"`
}

// PipelineWorker is the load of a worker.
type PipelineWorker struct {
	Backend   string        `json:"backend"`
	Weights   string        `json:"weights"`
	Class     string        `json:"class"` // name of the numerics class of its kernels
	Down      bool          `json:"down"`
	Capacity  int           `json:"capacity"` // sequences of a step
	Running   int           `json:"running"`
	Waiting   int           `json:"waiting"`
	Slabs     int           `json:"slabs"`
	FreeSlabs int           `json:"free_slabs"` // neither used nor promised
	Steps     uint64        `json:"steps"`
	Generated uint64        `json:"generated"` // tokens since the start
	InStep    time.Duration `json:"in_step"`   // since the last progress, with work at hand
}

// PipelineState returns what the pipeline of this process did last, and the processes that it knows.
func (p *Node) PipelineState() *PipelineState {
	s := &PipelineState{Now: time.Now(), Node: p.name, Steps: []worker.Step{}, Requests: []Timeline{}}
	if p.worker != nil {
		s.Steps = p.worker.RecentSteps()
	}
	if p.gateway != nil {
		s.Requests = p.gateway.Timelines(shownRequests)
	}
	for _, m := range p.members.Others() {
		s.Nodes = append(s.Nodes, shownNode(m))
	}
	self := p.Member()
	s.Nodes = append(s.Nodes, shownNode(&self))
	return s
}

func shownNode(m *cluster.Member) PipelineNode {
	n := PipelineNode{Node: m.Node, Roles: m.Roles, Model: m.Model, Started: m.Started, Draining: m.Draining, Requests: m.Requests}
	if m.Tokenizer != nil {
		n.Tokenize = m.Tokenizer.Load
	}
	if m.Detok != nil {
		n.Detok = m.Detok.Load
	}
	if w := m.Worker; w != nil {
		n.Worker = &PipelineWorker{
			Backend: w.Backend, Weights: w.Weights, Class: w.Class, Down: w.Down != "", Capacity: w.Capacity, Running: w.Running,
			Waiting: w.Waiting, Slabs: w.Slabs, FreeSlabs: w.FreeSlabs, Steps: w.Steps, Generated: w.Generated, InStep: w.InStep,
		}
	}
	return n
}
