package natsapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

const (
	serviceName = "millrace"
	description = "LLM serving: OpenAI's JSON over request-reply"
)

// endpoint is a subject of the service.
type endpoint struct {
	name, subject string
	answer        func(context.Context, *reply, []byte)
	unqueued      bool // every gateway answers, not one of the queue group
	metadata      map[string]string
	running       atomic.Int64 // requests that are being answered

	sub   *nats.Subscription
	mu    sync.Mutex
	stats micro.EndpointStats
}

// count adds an answer to the statistics.
func (e *endpoint) count(took time.Duration, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stats.NumRequests++
	e.stats.ProcessingTime += took
	e.stats.AverageProcessingTime = e.stats.ProcessingTime / time.Duration(e.stats.NumRequests)
	if err != nil {
		e.stats.NumErrors++
		e.stats.LastError = err.Error()
	}
}

func (e *endpoint) queue() string {
	if e.unqueued {
		return ""
	}
	return micro.DefaultQueueGroup
}

// listen subscribes to the endpoint's subject.
func (e *endpoint) listen(nc *nats.Conn, handle nats.MsgHandler) (err error) {
	if e.unqueued {
		e.sub, err = nc.Subscribe(e.subject, handle)
	} else {
		e.sub, err = nc.QueueSubscribe(e.subject, e.queue(), handle)
	}
	return err
}

// discovery answers the requests of `nats micro` ($SRV.PING, $SRV.INFO, $SRV.STATS). The package micro
// could, but it replies to any subject, also to one that is not an inbox.
type discovery struct {
	out       outbox
	id        micro.ServiceIdentity
	started   time.Time
	endpoints []*endpoint
	subs      []*nats.Subscription
}

func (d *discovery) listen() error {
	for verb, answer := range map[micro.Verb]func() any{micro.PingVerb: d.ping, micro.InfoVerb: d.info, micro.StatsVerb: d.stats} {
		for _, who := range []struct{ name, id string }{{"", ""}, {d.id.Name, ""}, {d.id.Name, d.id.ID}} {
			subject, err := micro.ControlSubject(verb, who.name, who.id)
			if err != nil {
				return fmt.Errorf("%s: %w", verb, err)
			}
			sub, err := d.out.nc.Subscribe(subject, func(m *nats.Msg) {
				if body, err := json.Marshal(answer()); err == nil {
					d.out.respond(m, &nats.Msg{Data: body}) //nolint:errcheck // the client sends its request again
				}
			})
			if err != nil {
				return fmt.Errorf("%s: %w", subject, err)
			}
			d.subs = append(d.subs, sub)
		}
	}
	return nil
}

// leave ends the subscriptions. Requests that the NATS server has delivered are still answered.
func (d *discovery) leave() error {
	var errs []error
	for _, sub := range d.subs {
		errs = append(errs, drain(sub))
	}
	for _, e := range d.endpoints {
		if e.sub != nil {
			errs = append(errs, drain(e.sub))
		}
	}
	return errors.Join(errs...)
}

// drain ends a subscription. It returns nil if the subscription or its connection has ended already.
func drain(sub *nats.Subscription) error {
	err := sub.Drain()
	if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrBadSubscription) {
		return nil
	}
	return err
}

func (d *discovery) ping() any {
	return micro.Ping{ServiceIdentity: d.id, Type: micro.PingResponseType}
}

func (d *discovery) info() any {
	i := d.describe(true)
	if body, err := json.Marshal(i); err == nil && len(body) > int(d.out.nc.MaxPayload()) {
		i = d.describe(false)
	}
	return i
}

// describe lists the endpoints, with or without their metadata.
func (d *discovery) describe(metadata bool) micro.Info {
	i := micro.Info{ServiceIdentity: d.id, Type: micro.InfoResponseType, Description: description}
	for _, e := range d.endpoints {
		info := micro.EndpointInfo{Name: e.name, Subject: e.subject, QueueGroup: e.queue(), Metadata: map[string]string{}}
		if metadata && e.metadata != nil {
			info.Metadata = e.metadata
		}
		i.Endpoints = append(i.Endpoints, info)
	}
	return i
}

func (d *discovery) stats() any {
	s := micro.Stats{ServiceIdentity: d.id, Type: micro.StatsResponseType, Started: d.started}
	for _, e := range d.endpoints {
		e.mu.Lock()
		stats := e.stats
		e.mu.Unlock()
		stats.Name, stats.Subject, stats.QueueGroup = e.name, e.subject, e.queue()
		stats.Data = fmt.Appendf(nil, `{"running":%d}`, e.running.Load())
		s.Endpoints = append(s.Endpoints, &stats)
	}
	return s
}
