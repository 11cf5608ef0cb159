package call

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/millrace/millrace/api"
)

// eventBuffer is the number of events that may wait for a slow reader. When they are full, the
// streams of its call wait, and nothing else does.
const eventBuffer = 64

// Continue submits the requests of a call that has made progress p elsewhere, and returns their events
// as one stream. Choices count through all requests, Seq continues that of p without a gap, and one
// event has Done. The last event of each request has a running total: its own usage plus that of the
// requests that ended earlier. The caller must end ctx, which cancels the requests that still run. An
// attempt above 0 becomes a part of the requests' IDs, because an earlier attempt may still be ending.
func (d *Direct) Continue(ctx context.Context, c *Call, p *Progress, attempt int) (EventStream, error) {
	echoes, err := c.echoTexts(ctx, d.engine)
	if err != nil {
		return nil, err
	}
	sum := total{seq: p.Seq, usage: p.Usage}
	var pumps []*pump
	for i, r := range c.Requests {
		if p.Ended[i] {
			continue
		}
		m := &pump{firstChoice: i * c.N, progress: p.Choices[i*c.N : (i+1)*c.N], pin: p.Pins[i], echo: echoes[i], text: echoes[i]}
		next := m.request(r, p, attempt)
		if c.Window > 0 && len(pumps) >= c.Window {
			m.submit = func() (api.Stream, error) { return d.engine.Submit(ctx, next) }
		} else if m.stream, err = d.engine.Submit(ctx, next); err != nil {
			for _, m := range pumps {
				m.close()
			}
			return nil, err
		}
		pumps = append(pumps, m)
	}
	sum.undone = len(pumps)
	switch len(pumps) {
	case 0:
		return EventsOf(), nil
	case 1:
		return newSingle(ctx, pumps[0], sum), nil
	}
	return merge(ctx, pumps, sum), nil
}

// merge runs pumps that write into one queue.
func merge(ctx context.Context, pumps []*pump, sum total) EventStream {
	f := &fanIn{total: sum, out: NewQueue(eventBuffer), pumps: len(pumps)}
	waiting := make(chan *pump, len(pumps))
	for _, m := range pumps {
		m.fanIn = f
		if m.submit != nil {
			waiting <- m
		}
	}
	close(waiting)
	for _, m := range pumps {
		if m.submit == nil {
			go m.runAll(ctx, waiting)
		}
	}
	return f.out
}

// runAll runs a pump, and then those that wait for their turn, one after the other.
func (m *pump) runAll(ctx context.Context, waiting <-chan *pump) {
	m.run(ctx)
	for next := range waiting {
		next.run(ctx)
	}
}

// echoTexts returns the text that the choices of each request begin with.
func (c *Call) echoTexts(ctx context.Context, engine api.Engine) ([]string, error) {
	texts := make([]string, len(c.Requests))
	if !c.Echo {
		return texts, nil
	}
	for i, r := range c.Requests {
		texts[i] = r.Prompt
		if len(r.PromptTokens) > 0 {
			text, err := engine.Detokenize(ctx, r.Model, r.PromptTokens)
			if err != nil {
				return nil, err
			}
			texts[i] = text
		}
	}
	return texts, nil
}

// total numbers the events of a call and adds up the usage of its requests.
type total struct {
	undone int // streams without a Done event yet
	seq    uint64
	usage  api.Usage
}

// add makes an event of a request one of the call.
func (t *total) add(ev *api.Event) {
	if ev.Done {
		t.undone--
	}
	if u := ev.Usage; u != nil {
		t.usage.PromptTokens += u.PromptTokens
		t.usage.CompletionTokens += u.CompletionTokens
		t.usage.CachedTokens += u.CachedTokens
	}
	ev.Usage = nil
	if ev.Done {
		usage := t.usage
		ev.Usage = &usage
	}
	if ev.Done = t.undone == 0; ev.Done {
		ev.Ended = time.Now().Unix()
	}
	t.seq++
	ev.Seq = t.seq
}

// single is the events of a call with one request: its stream, read by the reader of the call.
type single struct {
	mu    sync.Mutex // the context may end while the reader polls
	sum   total
	pump  *pump
	ready []api.Event
	ended bool
	stop  func() bool // ends the wait for the end of the context
}

func newSingle(ctx context.Context, m *pump, sum total) *single {
	s := &single{sum: sum, pump: m}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop = context.AfterFunc(ctx, s.end)
	return s
}

// end closes the stream, once.
func (s *single) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.ended, s.ready = true, nil
		s.pump.close()
	}
}

// Poll implements EventStream.
func (s *single) Poll() (ev api.Event, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.ready) == 0 {
		if s.ended {
			return api.Event{}, false, io.EOF
		}
		ev, ok, err := s.pump.stream.Poll()
		if !ok && err == nil {
			return api.Event{}, false, nil
		}
		s.ready = s.pump.take(ev, err)
		if n := len(s.ready); n > 0 && s.ready[n-1].Done {
			s.ended = true
			s.stop()
			s.pump.close()
		}
	}
	ev, s.ready = s.ready[0], s.ready[1:]
	s.sum.add(&ev)
	return ev, true, nil
}

// Wake implements EventStream.
func (s *single) Wake() <-chan struct{} { return s.pump.stream.Wake() }

// fanIn merges the streams of a call's requests into one.
type fanIn struct {
	out *Queue

	mu    sync.Mutex
	total total
	pumps int // running; the last one closes out
}

// pump makes the events of one request those of its call.
type pump struct {
	fanIn       *fanIn                     // nil: the call has no other request
	stream      api.Stream                 // nil before submit
	submit      func() (api.Stream, error) // when it runs; nil: the stream is there
	firstChoice int                        // of the request, among those of the call
	progress    []ChoiceProgress           // of each choice, before this attempt
	pin         api.Pin                    // of the progress
	text        string                     // of the echo; "" without one
	echo        string                     // text until it is sent, then ""
	skip        []int                      // events of a beam search to drop, by choice: the client has them
	out         []api.Event                // of take, reused
}

// request returns the request to submit: r, or a further attempt that continues after the progress.
// A beam search cannot continue. It starts over, and the pump drops the events that the client has.
func (m *pump) request(r *api.Request, p *Progress, attempt int) *api.Request {
	if attempt == 0 {
		return r
	}
	next := *r
	next.ID, next.First = fmt.Sprintf("%s.%d", r.ID, attempt), r.ID
	if !p.started(m.firstChoice, len(m.progress)) {
		return &next
	}
	next.Takeover = &api.Progress{Choices: make([]api.ChoiceProgress, len(m.progress)), Pin: m.pin}
	if r.Beams != nil {
		for _, ch := range m.progress {
			echoed := 0
			if m.echo != "" {
				echoed = min(1, ch.Events)
			}
			m.skip = append(m.skip, ch.Events-echoed)
		}
		return &next
	}
	for i, ch := range m.progress {
		next.Takeover.Choices[i] = api.ChoiceProgress{Tokens: ch.Tokens, Finish: ch.Finish}
	}
	return &next
}

// run forwards events to the fan-in until the stream is done or ctx ends, and closes the stream.
func (m *pump) run(ctx context.Context) {
	defer m.fanIn.exit()
	defer m.close()
	if m.submit != nil {
		if ctx.Err() != nil {
			return
		}
		var err error
		if m.stream, err = m.submit(); err != nil {
			m.fanIn.send(ctx, api.Event{Choice: m.firstChoice, Finish: api.FinishError, Err: err, Done: true})
			return
		}
	}
	for {
		for _, ev := range m.take(m.stream.Next(ctx)) {
			if done := ev.Done; !m.fanIn.send(ctx, ev) || done {
				return
			}
		}
	}
}

// take returns the events that the reader of the call gets for an event of the stream, or for its failure. The echo goes
// before the first event, unless that is a failure: a refusal must be the first event.
func (m *pump) take(ev api.Event, err error) []api.Event {
	m.out = m.out[:0]
	if err == nil && (ev.Choice < 0 || ev.Choice >= len(m.progress)) {
		err = fmt.Errorf("choice %d of %d", ev.Choice, len(m.progress))
	}
	if err != nil {
		ev = api.Event{Finish: api.FinishError, Err: streamError(err), Done: true}
	}
	if ev.Restart {
		m.echo = m.text
	} else if api.Failure(ev) == nil {
		m.takeEchoes(ev.Pin)
	}
	if len(m.skip) > 0 && m.skip[ev.Choice] > 0 && api.Failure(ev) == nil {
		m.skip[ev.Choice]--
		return m.out
	}
	ev.Choice += m.firstChoice
	m.out = append(m.out, ev)
	return m.out
}

func (m *pump) close() {
	if m.stream != nil {
		m.stream.Close()
	}
}

// takeEchoes takes the echo of each choice without events, with the pin of the event that follows. Later calls do nothing.
func (m *pump) takeEchoes(pin *api.Pin) {
	for i := 0; m.echo != "" && i < len(m.progress); i++ {
		if m.progress[i].Events == 0 {
			m.out = append(m.out, api.Event{Choice: m.firstChoice + i, Text: m.echo, Pin: pin})
		}
	}
	m.echo = ""
}

// streamError returns the error of an answer whose stream failed with err.
func streamError(err error) error {
	if errors.Is(err, io.EOF) {
		return errNoEnd()
	}
	return err
}

func errNoEnd() error {
	return &api.Error{Code: api.CodeInternal, Message: "the answer ended without its last event"}
}

// send numbers an event and sends it. It returns false if ctx ends first. It holds the lock while it
// waits for a slow reader, so all streams of the call wait.
func (f *fanIn) send(ctx context.Context, ev api.Event) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total.add(&ev)
	return f.out.Send(ctx, ev)
}

func (f *fanIn) exit() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pumps--; f.pumps == 0 {
		f.out.Close()
	}
}
