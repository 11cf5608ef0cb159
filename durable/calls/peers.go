package calls

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/durable/log"
)

// Subjects of the queries between gateways.
const (
	peerSubject = "millrace.resume.node."  // + node
	anySubject  = "millrace.resume.v3.any" // is there another gateway that reads our logs? The number is that of their form
	callSubject = "millrace.resume.call"
)

// query is about one call, to the gateway that runs it. The sender has a reader of the call.
type query struct {
	ID     string `json:"id"`
	Log    string `json:"log,omitempty"` // name of the log
	Cancel bool   `json:"cancel,omitempty"`
	Gap    bool   `json:"gap,omitempty"` // the log lacks records
}

type reply struct {
	Owns bool `json:"owns"`
}

// peers sends queries to the other gateways over NATS, and answers theirs.
type peers struct {
	c    *Calls
	subs []*nats.Subscription
}

func newPeers(c *Calls) (*peers, error) {
	p := &peers{c: c}
	for subject, handle := range map[string]nats.MsgHandler{peerSubject + c.node: p.handleOwner, anySubject: p.handlePresence,
		callSubject: p.handleCall, log.UsedSubject: c.logs.Used} {
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
		sub.Unsubscribe() //nolint:errcheck // it fails only without a connection, which ends subscriptions too
	}
}

// handleOwner answers whether this gateway runs a call or has just ended it.
func (p *peers) handleOwner(m *nats.Msg) {
	var q query
	if json.Unmarshal(m.Data, &q) != nil {
		return
	}
	s := p.c.lookup(q.Log)
	// The sender may not have read the end of a call that ended here.
	owns := s != nil && s.readerElsewhere(q.Cancel) || p.c.repair(q.Log, q.Gap)
	respond(m, reply{Owns: owns})
}

// handleCall answers a gateway that misses the log of a call, if the call is in our memory.
func (p *peers) handleCall(m *nats.Msg) {
	var q query
	if json.Unmarshal(m.Data, &q) == nil && p.c.repair(q.Log, q.Gap) {
		respond(m, reply{Owns: true})
	}
}

// handlePresence answers a gateway that searches for others. The body is its name.
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
		m.Respond(body) //nolint:errcheck // the sender queries again
	}
}

// anyHas queries all gateways, including this one, for a call whose log is missing or lacks records.
// A gateway that has the call in memory answers, and writes the log again. anyHas sends up to tries
// queries.
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

// owns queries whether a node runs a call or has just ended it. The answer is no if nobody is
// subscribed, because the subscriptions of a dead process are gone. An error means that no answer
// came in time.
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
		<-ctx.Done() // the node may be reconnecting, as this one was: count it as no answer
	}
	if err != nil {
		return false, err
	}
	var r reply
	err = json.Unmarshal(m.Data, &r)
	return r.Owns, err
}

// othersExist reports whether another gateway is running and not draining.
func (p *peers) othersExist(ctx context.Context) bool {
	const patience = 300 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := p.c.nc.RequestWithContext(ctx, anySubject, []byte(p.c.node))
	return err == nil
}
