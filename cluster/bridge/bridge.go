// Package bridge carries messages between the actors of two processes over NATS. Actors
// do not notice: a PID with the address of another node leads here. The bridge knows no
// message: a [Codec] encodes and decodes them.
//
// Messages to one node leave in the order in which they were sent. Those that arrive
// while a NATS message is written share the next one. No message is acknowledged: the
// actor that waits for a lost one notices.
package bridge

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/metrics"
)

const (
	subjectPrefix = "millrace.node."
	overhead      = 1 << 10 // of a frame around its parts, and of NATS' own protocol
	mostQueued    = 1 << 17 // messages waiting for one node; more are dropped
	mostPending   = 1 << 20 // NATS messages that wait to be read
	pendingBytes  = 256 << 20
	idle          = 10 * time.Second // after which a link to a node ends
)

// Codec is the wire form of the messages that travel between processes.
type Codec interface {
	// Kind returns the last part of the subject that a message travels on, and "" for a
	// message that does not leave its process.
	Kind(m any) string
	// Encode returns the wire form of a message to the named actor. now is the sender's time.
	Encode(to string, m any, now time.Time) ([]byte, error)
	// Decode returns the message of a wire form and the name of its actor. now is the
	// receiver's time. The message shares no memory with data.
	Decode(data []byte, now time.Time) (to string, m any, err error)
	// Recycle takes back a message after Encode.
	Recycle(m any)
}

// Subject is where a node gets messages of a kind (see [Codec]; "*" for any).
func Subject(node, kind string) string { return subjectPrefix + node + "." + kind }

// Bridge joins one actor system to the others.
type Bridge struct {
	system  *actor.ActorSystem
	codec   Codec
	conn    *nats.Conn
	node    string
	metrics *metrics.Cluster
	log     zerolog.Logger
	arrived func(any)
	sub     *nats.Subscription
	parts   assembly // used by the subscription's goroutine alone

	mu     sync.Mutex
	links  map[string]*link
	frames uint64 // large ones sent
	closed bool
	done   sync.WaitGroup
}

// New joins system, whose address must be the node's name. arrived is called with
// every incoming message, before its actor gets it.
func New(system *actor.ActorSystem, codec Codec, conn *nats.Conn, arrived func(any), m *metrics.Cluster,
	log zerolog.Logger) (*Bridge, error) {
	b := &Bridge{system: system, codec: codec, conn: conn, node: system.Address(), metrics: m, arrived: arrived,
		links: make(map[string]*link),
		log:   log.Sample(&zerolog.BurstSampler{Burst: 10, Period: time.Second})}
	var err error
	if b.sub, err = conn.Subscribe(Subject(b.node, "*"), b.receive); err != nil {
		return nil, fmt.Errorf("bridge: %w", err)
	}
	if err = b.sub.SetPendingLimits(mostPending, pendingBytes); err != nil {
		return nil, fmt.Errorf("bridge: %w", err)
	}
	system.ProcessRegistry.RegisterAddressResolver(func(*actor.PID) (actor.Process, bool) {
		return &remote{b}, true
	})
	return b, nil
}

// Close sends what waits and stops.
func (b *Bridge) Close() {
	_ = b.sub.Unsubscribe() // the connection may be gone
	b.mu.Lock()
	b.closed = true
	for _, l := range b.links {
		close(l.quit)
	}
	b.mu.Unlock()
	b.done.Wait()
}

// remote is the process of every PID with a foreign address.
type remote struct{ b *Bridge }

func (r *remote) SendUserMessage(pid *actor.PID, message any) {
	_, m, _ := actor.UnwrapEnvelope(message)
	r.b.send(pid, m)
}

// SendSystemMessage drops: nobody watches or stops an actor of another process.
func (r *remote) SendSystemMessage(*actor.PID, any) {}
func (r *remote) Stop(*actor.PID)                   {}

func (b *Bridge) send(pid *actor.PID, m any) {
	if b.codec.Kind(m) == "" {
		b.drop("local", 1, fmt.Errorf("bridge: a %T to %s at %s: expected a message that travels", m, pid.Id, pid.Address))
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.links[pid.Address]
	if l == nil {
		if b.closed {
			return
		}
		l = &link{b: b, node: pid.Address, wake: make(chan struct{}, 1), quit: make(chan struct{})}
		b.links[pid.Address] = l
		b.done.Go(l.run)
	}
	if len(l.queue) >= mostQueued {
		b.metrics.Dropped("queue_full", 1) // without a line each: there are many
		return
	}
	l.queue = append(l.queue, outgoing{pid.Id, m})
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (b *Bridge) drop(reason string, n int, err error) {
	b.metrics.Dropped(reason, n)
	b.log.Warn().Err(err).Str("reason", reason).Int("messages", n).Msg("messages between actors were dropped")
}

// receive hands the messages of a NATS message to their actors.
func (b *Bridge) receive(m *nats.Msg) {
	b.metrics.BytesIn.Add(float64(len(m.Data)))
	kind := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	if err := b.frame(m.Data, kind, false); err != nil {
		b.drop("undecodable", 1, err)
	}
}

func (b *Bridge) frame(data []byte, kind string, whole bool) error {
	f, err := decodeFrame(data)
	if err != nil {
		return fmt.Errorf("%d bytes: %w", len(data), err)
	}
	now := time.Now()
	if f.part != nil {
		if whole {
			return fmt.Errorf("%w: one inside another", errParts)
		}
		all, err := b.parts.add(now, f.from, f.part)
		if err != nil || all == nil {
			return err
		}
		return b.frame(all, kind, true)
	}
	for _, data := range f.messages {
		b.metrics.MessagesIn.Inc()
		b.deliver(f.from, kind, data, now)
	}
	return nil
}

// deliver hands a message to its actor.
func (b *Bridge) deliver(from, kind string, data []byte, now time.Time) {
	to, m, err := b.codec.Decode(data, now)
	if err == nil && b.codec.Kind(m) != kind {
		err = fmt.Errorf("%w: a %T as %q", errFrame, m, kind)
	}
	if err != nil {
		b.drop("undecodable", 1, fmt.Errorf("from %s to %s: %w", from, to, err))
		return
	}
	process, ok := b.system.ProcessRegistry.GetLocal(to)
	if !ok { // an actor that has ended: late text, mostly
		b.metrics.Dropped("unknown_actor", 1)
		b.log.Debug().Str("from", from).Str("to", to).Type("message", m).Msg("a message to an actor that is not here")
		return
	}
	b.arrived(m)
	process.SendUserMessage(actor.NewPID(b.node, to), m)
}
