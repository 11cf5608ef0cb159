package openai

import (
	"slices"
	"strconv"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/proof"
	"github.com/millrace/millrace/api/tools"
)

// Chunks encodes the events of a call as OpenAI's chunks. The slices that a method returns are valid
// until the next call. After the first few calls, methods do not allocate.
type Chunks struct {
	call    *call.Call
	parser  *call.Parser
	proof   *proof.Recorder // nil: no proof
	common  int             // bytes of each head before its fingerprint
	heads   [][]byte        // by choice: the start of a chunk, up to `"choices":[`; one slice for all of a request
	tail    []byte          // from the `]` of the choices
	offsets []position      // by choice: position of the next token in the text, for the logprobs of completions
	buf     []byte
	starts  []int
	out     [][]byte
}

// NewChunks returns the encoder of a call. fingerprint is the system_fingerprint until an event has a
// numerics digest.
func NewChunks(c *call.Call, fingerprint string) *Chunks {
	object := "chat.completion.chunk"
	if c.Kind == call.Completion {
		object = "text_completion"
	}
	head := appendString([]byte(`{"id":`), c.ID)
	head = append(append(head, `,"object":"`...), object...)
	head = strconv.AppendInt(append(head, `","created":`...), c.Created.Unix(), 10)
	head = appendString(append(head, `,"model":`...), c.Model)
	head = append(head, `,"system_fingerprint":`...)
	tail := `]}`
	if c.IncludeUsage {
		tail = `],"usage":null}`
	}
	chunks := &Chunks{call: c, parser: call.NewParser(c), common: len(head), heads: make([][]byte, c.Choices()), tail: []byte(tail),
		offsets: make([]position, c.Choices()), proof: proof.NewRecorder(c)}
	for first := 0; first < c.Choices(); first += c.N {
		chunks.heads[first] = slices.Clone(head)
		chunks.setFingerprint(first, fingerprint)
	}
	return chunks
}

// NewEncoder is NewChunks as a call.Codec has it.
func NewEncoder(c *call.Call, fingerprint string) call.Encoder { return NewChunks(c, fingerprint) }

// Observe sets the system_fingerprint of later chunks from ev, if ev has one. Encode does the same, so
// only a caller that calls Open at the first event needs it.
func (c *Chunks) Observe(ev api.Event) {
	if ev.Pin == nil {
		return
	}
	if fingerprint := ev.Pin.Fingerprint(); fingerprint != "" {
		c.setFingerprint(ev.Choice-ev.Choice%c.call.N, fingerprint)
	}
}

// setFingerprint sets the fingerprint of the request whose first choice is first.
func (c *Chunks) setFingerprint(first int, fingerprint string) {
	head := appendString(c.heads[first][:c.common], fingerprint)
	head = append(head, `,"choices":[`...)
	for i := range c.call.N {
		c.heads[first+i] = head
	}
}

// Open returns the chunks before the first token, which have the role of each chat choice. Those of a
// plain completion have no text, for transports that need a first message at once.
func (c *Chunks) Open() [][]byte {
	c.reset()
	for i := range c.call.Choices() {
		c.openChoice(i)
		if c.call.Kind == call.Chat {
			c.add(`"delta":{"role":"assistant","content":"","refusal":null}`)
		} else {
			c.add(`"text":""`)
		}
		c.add(`,"logprobs":null,"finish_reason":null}`)
		c.closeChoice()
	}
	return c.finish()
}

// Encode returns the chunks of an event: its text, the end of its choice, the usage and the proof. There may be
// none, since a token may have no text, and since text that may begin a tool call is held back. The event
// must not have a Failure.
func (c *Chunks) Encode(ev api.Event) [][]byte {
	c.reset()
	if ev.Pin != nil {
		c.Observe(ev)
	}
	finish := ev.Finish
	if c.parser != nil {
		finish = c.parsed(&ev)
	} else if ev.Text != "" || c.details(&ev) {
		c.text(&ev)
	}
	if finish != api.FinishNone {
		c.openChoice(ev.Choice)
		if c.call.Kind == call.Chat {
			c.add(`"delta":{}`)
		} else {
			c.add(`"text":""`)
		}
		c.add(`,"logprobs":null,"finish_reason":"`)
		c.add(string(finish))
		c.add(`"}`)
		c.closeChoice()
	}
	c.proof.Add(&ev, finish)
	if ev.Done && ev.Usage != nil && (c.call.IncludeUsage || c.call.Proof) {
		c.end(*ev.Usage)
	}
	return c.finish()
}

// details reports whether an event has more for its client than text.
func (c *Chunks) details(ev *api.Event) bool {
	return len(ev.Logprobs) > 0 || c.call.TokenIDs && len(ev.Tokens) > 0
}

// parsed adds a chunk for each delta of an event. The first one has the event's log probabilities and token ids.
func (c *Chunks) parsed(ev *api.Event) api.Finish {
	deltas, finish := c.parser.Event(ev)
	first := true
	for i := range deltas {
		if deltas[i].Kind == tools.End {
			continue
		}
		c.openChoice(ev.Choice)
		c.delta(&deltas[i])
		c.closeText(ev, first)
		first = false
	}
	if first && c.details(ev) {
		c.openChoice(ev.Choice)
		c.add(`"delta":{}`)
		c.closeText(ev, true)
	}
	return finish
}

// delta adds the delta of a chat.
func (c *Chunks) delta(d *tools.Delta) {
	text := func(name string) { c.buf = append(appendString(append(c.buf, name...), d.Text), '}') }
	switch d.Kind {
	case tools.Content:
		text(`"delta":{"content":`)
	case tools.Reasoning:
		text(`"delta":{"reasoning_content":`)
	case tools.Begin:
		c.add(`"delta":{"tool_calls":[{"index":`)
		c.buf = strconv.AppendInt(c.buf, int64(d.Call), 10)
		c.buf = appendString(append(c.buf, `,"id":`...), d.ID)
		c.buf = appendString(append(c.buf, `,"type":"function","function":{"name":`...), d.Name)
		c.add(`,"arguments":""}}]}`)
	case tools.Arguments:
		c.add(`"delta":{"tool_calls":[{"index":`)
		c.buf = strconv.AppendInt(c.buf, int64(d.Call), 10)
		text(`,"function":{"arguments":`)
		c.add(`}]}`)
	case tools.End:
	}
}

func (c *Chunks) text(ev *api.Event) {
	c.openChoice(ev.Choice)
	if c.call.Kind == call.Chat {
		c.add(`"delta":{"content":`)
		c.buf = append(appendString(c.buf, ev.Text), '}')
	} else {
		c.add(`"text":`)
		c.buf = appendString(c.buf, ev.Text)
	}
	c.closeText(ev, true)
}

// closeText adds the rest of a chunk after its text. With details it has the event's log probabilities and
// token ids.
func (c *Chunks) closeText(ev *api.Event, details bool) {
	c.add(`,"logprobs":`)
	switch {
	case len(ev.Logprobs) == 0 || !details:
		c.add(`null`)
	case c.call.Kind == call.Chat:
		c.buf = appendChatLogprobs(c.buf, ev.Logprobs)
	default:
		c.buf = appendCompletionLogprobs(c.buf, ev.Logprobs, &c.offsets[ev.Choice])
	}
	c.add(`,"finish_reason":null`)
	if c.call.TokenIDs && details {
		c.add(`,"token_ids":`)
		c.buf = appendInts(c.buf, ev.Tokens)
	}
	c.add(`}`)
	c.closeChoice()
}

// end adds the chunk without choices that ends the answer, with the usage and the proof as far as the call wants them.
func (c *Chunks) end(u api.Usage) {
	c.openChunk(0)
	c.add(`]`)
	if c.call.IncludeUsage {
		c.add(`,"usage":`)
		reasoning, reasons := c.parser.Reasoning()
		if !reasons {
			reasoning = -1
		}
		c.buf = appendUsage(c.buf, u, reasoning)
	}
	if p := c.proof.Proof(); p != nil {
		c.add(`,"proof":`)
		text, err := api.Marshal(p)
		if err != nil { // strings and numbers always marshal
			text = []byte("null")
		}
		c.buf = append(c.buf, text...)
	}
	c.add(`}`)
}

func (c *Chunks) openChoice(choice int) {
	c.openChunk(choice)
	c.add(`{"index":`)
	c.buf = append(strconv.AppendInt(c.buf, int64(choice), 10), ',')
}

// openChunk starts a chunk of a choice, up to `"choices":[`.
func (c *Chunks) openChunk(choice int) {
	c.starts = append(c.starts, len(c.buf))
	c.buf = append(c.buf, c.heads[choice]...)
}

func (c *Chunks) closeChoice() { c.buf = append(c.buf, c.tail...) }

func (c *Chunks) add(s string) { c.buf = append(c.buf, s...) }

func (c *Chunks) reset() { c.buf, c.starts = c.buf[:0], c.starts[:0] }

// finish splits the buffer into chunks, after the last append that may move it.
func (c *Chunks) finish() [][]byte {
	c.out = c.out[:0]
	for i, start := range c.starts {
		end := len(c.buf)
		if i+1 < len(c.starts) {
			end = c.starts[i+1]
		}
		c.out = append(c.out, c.buf[start:end:end])
	}
	return c.out
}
