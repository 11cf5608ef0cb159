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
// requests that ended earlier. The channel closes after Done, or when ctx ends. The caller must end ctx, which cancels the
// requests that still run. An attempt above 0 becomes a part of the requests' IDs, because an
// earlier attempt may still be ending.
func (d *Direct) Continue(ctx context.Context, c *Call, p *Progress, attempt int) (<-chan api.Event, error) {
	echoes, err := c.echoTexts(ctx, d.engine)
	if err != nil {
		return nil, err
	}
	f := &fanIn{seq: p.Seq, usage: p.Usage}
	var pumps []*pump
	for i, r := range c.Requests {
		if p.Ended[i] {
			continue
		}
		m := &pump{fanIn: f, firstChoice: i * c.N, progress: p.Choices[i*c.N : (i+1)*c.N], pin: p.Pins[i], echo: echoes[i], text: echoes[i]}
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
	f.out = make(chan api.Event, eventBuffer) // after the last refusal: its 10 KB are most of what a refused call would need
	f.pumps, f.undone = len(pumps), len(pumps)
	if len(pumps) == 0 {
		close(f.out)
	}
	waiting := make(chan *pump, len(pumps))
	for _, m := range pumps {
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
	return f.out, nil
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

// fanIn merges the streams of a call's requests into one.
type fanIn struct {
	out chan api.Event

	mu     sync.Mutex
	pumps  int // running; the last one closes out
	undone int // streams without a Done event yet
	seq    uint64
	usage  api.Usage
}

// pump forwards the events of one request to the fan-in.
type pump struct {
	*fanIn
	stream      api.Stream                 // nil before submit
	submit      func() (api.Stream, error) // when it runs; nil: the stream is there
	firstChoice int                        // of the request, among those of the call
	progress    []ChoiceProgress           // of each choice, before this attempt
	pin         api.Pin                    // of the progress
	text        string                     // of the echo; "" without one
	echo        string                     // text until it is sent, then ""
	skip        []int                      // events of a beam search to drop, by choice: the client has them
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

// run forwards events until the stream is done or ctx ends, and closes the stream. The echo goes
// before the first event, unless that is a failure: a refusal must be the first event.
func (m *pump) run(ctx context.Context) {
	defer m.exit()
	defer m.close()
	if m.submit != nil {
		if ctx.Err() != nil {
			return
		}
		var err error
		if m.stream, err = m.submit(); err != nil {
			m.send(ctx, api.Event{Choice: m.firstChoice, Finish: api.FinishError, Err: err, Done: true})
			return
		}
	}
	for {
		ev, err := m.stream.Next(ctx)
		if err == nil && (ev.Choice < 0 || ev.Choice >= len(m.progress)) {
			err = fmt.Errorf("choice %d of %d", ev.Choice, len(m.progress))
		}
		if err != nil {
			ev = api.Event{Finish: api.FinishError, Err: streamError(err), Done: true}
		}
		if ev.Restart {
			m.echo = m.text
		} else if api.Failure(ev) == nil {
			m.sendEchoes(ctx, ev.Pin)
		}
		if len(m.skip) > 0 && m.skip[ev.Choice] > 0 && api.Failure(ev) == nil {
			m.skip[ev.Choice]--
			continue
		}
		ev.Choice += m.firstChoice
		if done := ev.Done; !m.send(ctx, ev) || done {
			return
		}
	}
}

func (m *pump) close() {
	if m.stream != nil {
		m.stream.Close()
	}
}

// sendEchoes sends the echo of each choice without events, with the pin of the event that follows. Later calls do nothing.
func (m *pump) sendEchoes(ctx context.Context, pin *api.Pin) {
	for i := 0; m.echo != "" && i < len(m.progress); i++ {
		if m.progress[i].Events == 0 {
			m.send(ctx, api.Event{Choice: m.firstChoice + i, Text: m.echo, Pin: pin})
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
	if ev.Done {
		f.undone--
	}
	if u := ev.Usage; u != nil {
		f.usage.PromptTokens += u.PromptTokens
		f.usage.CompletionTokens += u.CompletionTokens
		f.usage.CachedTokens += u.CachedTokens
	}
	ev.Usage = nil
	if ev.Done {
		usage := f.usage
		ev.Usage = &usage
	}
	if ev.Done = f.undone == 0; ev.Done {
		ev.Ended = time.Now().Unix()
	}
	f.seq++
	ev.Seq = f.seq
	select {
	case f.out <- ev:
		return true
	case <-ctx.Done():
		return false
	}
}

func (f *fanIn) exit() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pumps--; f.pumps == 0 {
		close(f.out)
	}
}
