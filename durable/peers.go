package durable

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// Subjects of what gateways ask each other.
const (
	peerSubject  = "millrace.resume.node."  // + node
	anySubject   = "millrace.resume.v3.any" // we ask gateways here that read our logs
	anySubjectV2 = "millrace.resume.v2.any" // the version before asks here, whose logs we read. It does not read ours
	callSubject  = "millrace.resume.call"
)

// question is about one call, to the gateway that runs it. Who asks has a reader.
type query struct {
	ID     string `json:"id"`
	Log    string `json:"log,omitempty"` // name of the call's log; "" from a version before: its logs are named by the ID alone
	Cancel bool   `json:"cancel,omitempty"`
	Gap    bool   `json:"gap,omitempty"` // the log lacks records
}

// log is the name of the log that the question is about.
func (q *query) log() string { return cmp.Or(q.Log, q.ID) }

type reply struct {
	Owns bool `json:"owns"`
}

// peers speaks with the other gateways over NATS.
type peers struct {
	c    *Calls
	subs []*nats.Subscription
}

func newPeers(c *Calls) (*peers, error) {
	p := &peers{c: c}
	for subject, handle := range map[string]nats.MsgHandler{peerSubject + c.node: p.handleOwner, anySubject: p.handlePresence, anySubjectV2: p.handlePresence,
		callSubject: p.handleCall, usedSubject: c.quota.receive} {
		sub, err := c.nc.Subscribe(subject, handle)
		if err != nil {
			p.close()
			return nil, err
		}
		p.subs = append(p.subs, sub)
	}
	return p, c.nc.Flush()
}

func (p *peers) close() {
	for _, sub := range p.subs {
		sub.Unsubscribe() //nolint:errcheck // the connection is gone, and with it our interest
	}
}

func (p *peers) handleOwner(m *nats.Msg) {
	var q query
	if json.Unmarshal(m.Data, &q) != nil {
		return
	}
	s := p.c.lookup(q.log())
	owns := s != nil && s.readerElsewhere(q.Cancel) || p.c.repair(q.log(), q.Gap) // ended here, and its end not seen there
	respond(m, reply{Owns: owns})
}

// look answers who misses the log of a call, if the call is here.
func (p *peers) handleCall(m *nats.Msg) {
	var q query
	if json.Unmarshal(m.Data, &q) == nil && p.c.repair(q.log(), q.Gap) {
		respond(m, reply{Owns: true})
	}
}

// hello answers who looks for another gateway: the body is the asker's name.
func (p *peers) handlePresence(m *nats.Msg) {
	p.c.mu.Lock()
	draining := p.c.draining
	p.c.mu.Unlock()
	if string(m.Data) != p.c.node && !draining {
		respond(m, reply{})
	}
}

func respond(m *nats.Msg, r reply) {
	body, err := json.Marshal(r)
	if err == nil {
		m.Respond(body) //nolint:errcheck // who asked asks again
	}
}

// have asks all gateways, ourselves too, for a call whose log is missing or lacks records.
// Who has it in memory says so, and writes the log again. tries is how many questions may be
// left without an answer.
func (p *peers) anyHas(ctx context.Context, q query, tries int) bool {
	body, err := json.Marshal(q)
	if err != nil {
		return false
	}
	for range tries {
		once, cancel := context.WithTimeout(ctx, p.c.opts.Answer)
		_, err = p.c.nc.RequestWithContext(once, callSubject, body)
		cancel()
		if err == nil {
			return true
		}
	}
	return false
}

// ask asks a node whether it runs a call, or has just ended it. Nobody there is a plain no: a process
// that died has no subscription. An error means that no answer came in time.
func (p *peers) owns(ctx context.Context, node string, q query) (owns bool, err error) {
	if node == "" {
		return false, nil
	}
	body, err := json.Marshal(q)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.c.opts.Answer)
	defer cancel()
	m, err := p.c.nc.RequestWithContext(ctx, peerSubject+node, body)
	if errors.Is(err, nats.ErrNoResponders) {
		if p.c.peersReconnected() {
			return false, nil
		}
		<-ctx.Done() // as no answer: its connection may be about to come back, as ours did
	}
	if err != nil {
		return false, err
	}
	var r reply
	err = json.Unmarshal(m.Data, &r)
	return r.Owns, err
}

// others says whether another gateway is there.
func (p *peers) othersExist(ctx context.Context) bool {
	const patience = 300 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := p.c.nc.RequestWithContext(ctx, anySubject, []byte(p.c.node))
	return err == nil
}
