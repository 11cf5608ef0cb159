package log

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/api"
)

// When a gateway dies, another one reads the logs of all its calls at once. The records of a log lie
// between those of all others, and the server scans them for each consumer. So the logs that are to be
// read while others are being read have one consumer together.

// loads are the logs that are to be read.
type loads struct {
	mu      sync.Mutex
	waiting []*load
	reading int // batches
}

// Bounds of the batches. A long log holds up those of its batch, and not all others.
const (
	mostBatches = 2
	mostLoads   = 128
)

// load is a log that is to be read.
type load struct {
	log    string
	oldest uint64
	state  State
	assembly

	seen   bool // a message
	events []api.Event
	err    error
	done   chan struct{}
}

// load reads a whole log into s and returns its events. The error is ErrNoLog if there is none, and
// ErrGap if records are missing; s then has the others. ErrNotOurs, ErrReplaced and ErrOutgrown are
// those of State.Apply.
func (j *journal) load(ctx context.Context, log string, s *State) ([]api.Event, error) {
	oldest, err := j.oldest(ctx, log)
	if err != nil {
		return nil, err
	}
	if oldest == 0 {
		return nil, ErrNoLog
	}
	stream := *j.stream.Load()
	l := &load{log: log, oldest: oldest, state: *s, done: make(chan struct{})}
	j.loads.mu.Lock()
	j.loads.waiting = append(j.loads.waiting, l)
	if j.loads.reading < mostBatches {
		j.loads.reading++
		go j.loadBatches()
	}
	j.loads.mu.Unlock()
	select {
	case <-l.done:
		*s = l.state
		if errors.Is(l.err, ErrNoLog) { // any replica may have its consumer
			ctx, cancel := context.WithTimeout(ctx, j.timeout)
			defer cancel()
			if err := j.absent(ctx, stream, log); err != nil {
				return nil, err
			}
		}
		return l.events, l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// loadBatches reads what waits, until nothing does.
func (j *journal) loadBatches() {
	for {
		j.loads.mu.Lock()
		n := min(len(j.loads.waiting), mostLoads)
		batch := slices.Clone(j.loads.waiting[:n])
		j.loads.waiting = slices.Delete(j.loads.waiting, 0, n)
		if n == 0 {
			j.loads.reading--
		}
		j.loads.mu.Unlock()
		if n == 0 {
			return
		}
		err := j.loadBatch(batch)
		for _, l := range batch {
			l.finish(err)
		}
	}
}

// loadBatch reads logs up to the ends that they have now.
func (j *journal) loadBatch(batch []*load) error {
	byLog := map[string][]*load{}
	var logs []string
	oldest := batch[0].oldest
	for _, l := range batch {
		if byLog[l.log] == nil {
			logs = append(logs, l.log)
		}
		byLog[l.log] = append(byLog[l.log], l)
		oldest = min(oldest, l.oldest)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	t, err := j.tail(ctx, oldest, logs...)
	if err != nil {
		return err
	}
	defer t.Stop()
	for _, l := range batch {
		l.state.Created = t.created
	}
	silent := time.AfterFunc(j.timeout, cancel)
	defer silent.Stop()
	for range t.Pending {
		m, err := t.messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNoJetStream, err)
		}
		silent.Reset(j.timeout)
		for _, l := range byLog[strings.TrimPrefix(m.Subject(), Subject)] {
			l.take(m)
		}
		if meta, err := m.Metadata(); err == nil && meta.NumPending == 0 { // some were removed meanwhile
			return nil
		}
	}
	return nil
}

// take applies the log's next message.
func (l *load) take(m jetstream.Msg) {
	if l.seen = true; l.err != nil {
		return
	}
	e, err := l.add(m)
	if err != nil {
		l.err = fmt.Errorf("%w: %w", ErrNoJetStream, err)
		return
	}
	added, err := l.state.Apply(e)
	l.err = err
	l.events = append(l.events, added...)
}

// finish ends the load. err is that of its batch.
func (l *load) finish(err error) {
	defer close(l.done)
	switch {
	case l.err != nil:
		l.events = nil
	case err != nil:
		l.events, l.err = nil, err
	case !l.seen:
		l.err = ErrNoLog
	default:
		l.err = l.state.whole()
	}
}
