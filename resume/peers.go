package resume

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// Subjects of what gateways ask each other.
const (
	peerSubject = "millrace.resume.node." // + node
	anySubject  = "millrace.resume.any"
	callSubject = "millrace.resume.call"
)

// question is about one call, to the gateway that runs it. Who asks has a reader.
type question struct {
	ID     string `json:"id"`
	Cancel bool   `json:"cancel,omitempty"`
}

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
	for subject, handle := range map[string]nats.MsgHandler{peerSubject + c.node: p.answer, anySubject: p.hello, callSubject: p.look} {
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

func (p *peers) answer(m *nats.Msg) {
	var q question
	if json.Unmarshal(m.Data, &q) != nil {
		return
	}
	s := p.c.lookup(q.ID)
	owns := s != nil && s.watched(q.Cancel) || p.c.mend(q.ID) // ended here, and its end not seen there
	respond(m, reply{Owns: owns})
}

// look answers who misses the log of a call, if the call is here.
func (p *peers) look(m *nats.Msg) {
	var q question
	if json.Unmarshal(m.Data, &q) == nil && p.c.mend(q.ID) {
		respond(m, reply{Owns: true})
	}
}

// hello answers who looks for another gateway: the body is the asker's name.
func (p *peers) hello(m *nats.Msg) {
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

// have asks all gateways, ourselves too, for a call whose log is missing. Who has it in
// memory says so, and writes the log again.
func (p *peers) have(ctx context.Context, id string) bool {
	body, err := json.Marshal(question{ID: id})
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, p.c.opts.Answer)
	defer cancel()
	_, err = p.c.nc.RequestWithContext(ctx, callSubject, body)
	return err == nil
}

// ask asks a node whether it runs a call, or has just ended it. Nobody there is a plain no: a process
// that died has no subscription. An error means that no answer came in time.
func (p *peers) ask(ctx context.Context, node string, q question) (owns bool, err error) {
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
		if p.c.settled() {
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
func (p *peers) others(ctx context.Context) bool {
	const patience = 300 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := p.c.nc.RequestWithContext(ctx, anySubject, []byte(p.c.node))
	return err == nil
}
