package call

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/millrace/millrace/api"
)

// eventBuffer is how many events wait for a slow reader before its own stream,
// and nothing else, is held up.
const eventBuffer = 64

// Continue submits the requests of a call that has come as far as p elsewhere, and returns
// their events as one stream: choices numbered through, Seq from p's without a gap, one Done. An
// event that ends a request has the usage of all that have ended so far. The channel closes
// after Done, or early when ctx ends. Ending ctx cancels what still runs; the caller must end
// it. attempt, when it is not 0, keeps the IDs of the requests apart from those of an attempt
// that may still be ending.
func (d *Direct) Continue(ctx context.Context, c *Call, p *Progress, attempt int) (<-chan api.Event, error) {
	echoes, err := c.echoTexts(ctx, d.engine)
	if err != nil {
		return nil, err
	}
	f := &fanIn{out: make(chan api.Event, eventBuffer), seq: p.Seq, usage: p.Usage}
	var pumps []*pump
	for i, r := range c.Requests {
		if p.Ended[i] {
			continue
		}
		m := &pump{fanIn: f, firstChoice: i * c.N, progress: p.Choices[i*c.N : (i+1)*c.N], pin: p.Pins[i], echo: echoes[i], text: echoes[i]}
		if m.stream, err = d.engine.Submit(ctx, m.request(r, p, attempt)); err != nil {
			for _, m := range pumps {
				m.stream.Close()
			}
			return nil, err
		}
		pumps = append(pumps, m)
	}
	f.pumps, f.undone = len(pumps), len(pumps)
	if len(pumps) == 0 {
		close(f.out)
	}
	for _, m := range pumps {
		go m.run(ctx)
	}
	return f.out, nil
}

// echoTexts are the texts that the choices of each request begin with.
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

// fanIn makes one numbered stream of several.
type fanIn struct {
	out chan api.Event

	mu     sync.Mutex
	pumps  int // still running; the last one closes out
	undone int // streams whose Done event has not come
	seq    uint64
	usage  api.Usage
}

// pump moves one request's events into the fan-in.
type pump struct {
	*fanIn
	stream      api.Stream
	firstChoice int              // of its choices
	progress    []ChoiceProgress // what each choice has already
	pin         api.Pin          // of what they have
	text        string           // that each choice begins with
	echo        string           // text, until it is sent
	skip        []int            // events to drop, by choice: the search starts over and they are there already
}

// request is what to submit: r, or r behind what its choices have. A beam search
// has no middle to go on from. It starts over, and what it said already is dropped.
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

// run moves events until the stream is done or ctx ends, and closes it. The echo
// goes before the first event that is no failure: a refusal stays the first.
func (m *pump) run(ctx context.Context) {
	defer m.exit()
	defer m.stream.Close()
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
			m.sendEchoes(ctx)
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

// sendEchoes sends, once, the echo of each choice that has nothing yet.
func (m *pump) sendEchoes(ctx context.Context) {
	for i := 0; m.echo != "" && i < len(m.progress); i++ {
		if m.progress[i].Events == 0 {
			m.send(ctx, api.Event{Choice: m.firstChoice + i, Text: m.echo})
		}
	}
	m.echo = ""
}

func streamError(err error) error {
	if errors.Is(err, io.EOF) {
		return errNoEnd()
	}
	return err
}

func errNoEnd() error {
	return &api.Error{Code: api.CodeInternal, Message: "the answer ended without its last event"}
}

// send numbers an event and passes it on; false when ctx ended first. The lock
// is held while the reader is behind: the streams of one call wait together.
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
	ev.Done = f.undone == 0
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
