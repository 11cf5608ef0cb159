package responses

import (
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/proof"
	"github.com/millrace/millrace/api/tools"
)

// event is an event of a stream. Its type says which fields it has. The type is the first field, and the name of the server-sent event.
type event struct {
	Type         string         `json:"type"`
	Number       int            `json:"sequence_number"`
	Response     *Response      `json:"response,omitempty"`
	OutputIndex  *int           `json:"output_index,omitempty"`
	ItemID       string         `json:"item_id,omitempty"`
	ContentIndex *int           `json:"content_index,omitempty"`
	Item         *Item          `json:"item,omitempty"`
	Part         *ContentPart   `json:"part,omitempty"`
	Delta        *string        `json:"delta,omitempty"`
	Text         *string        `json:"text,omitempty"`
	Logprobs     *[]TextLogprob `json:"logprobs,omitempty"`
	Name         string         `json:"name,omitempty"`
	Arguments    *string        `json:"arguments,omitempty"`
	Input        *string        `json:"input,omitempty"`
}

// stream encodes the events of a call. It has no state but that of its events.
type stream struct {
	call   *call.Call
	parser *call.Parser
	number int
	r      Response
	names  map[string]called
	item   *Item       // in hand; nil: none
	wrote  string      // the arguments of a custom tool's call so far
	part   ContentPart // of an item with text
	chosen call.TextLogprobs
	pairs  []TextLogprob // of the event's text, for its first delta
	finish api.Finish
	proof  *proof.Recorder
	out    [][]byte
}

// NewStream returns the encoder of a streamed answer.
func NewStream(c *call.Call, _ string) call.Encoder {
	r := newResponse(c)
	return &stream{call: c, parser: call.NewParser(c), r: r, names: clientNames(r.Tools), proof: proof.NewRecorder(c)}
}

// Observe does nothing: no chunk has a digest.
func (*stream) Observe(api.Event) {}

// Open returns the start of the response.
func (s *stream) Open() [][]byte {
	s.out = s.out[:0]
	s.add(event{Type: "response.created", Response: &s.r})
	s.add(event{Type: "response.in_progress", Response: &s.r})
	return s.out
}

// Encode returns the chunks of an event.
func (s *stream) Encode(ev api.Event) [][]byte {
	s.out = s.out[:0]
	deltas, finish := s.parser.Deltas(&ev)
	s.proof.Add(&ev, finish)
	s.pairs = *logprobsOf(s.chosen.Add(deltas, ev.Logprobs))
	for i := range deltas {
		s.delta(&deltas[i])
	}
	if finish != api.FinishNone {
		s.finish = finish
		s.endItem(finish == api.FinishLength)
	}
	if ev.Done {
		s.r.end(s.finish, ev.Ended)
		if ev.Usage != nil {
			reasoning, _ := s.parser.Reasoning()
			s.r.Usage = usageOf(*ev.Usage, reasoning)
		}
		s.r.Proof = s.proof.Proof()
		s.add(event{Type: "response." + s.r.Status, Response: &s.r})
	}
	return s.out
}

// Fail returns the events of an error: the error, as clients of the stream expect it, and the response that failed, which agents wait for.
func (s *stream) Fail(e *api.Error) [][]byte {
	s.out = append(s.out[:0], encodeErrorEvent(e, s.number))
	s.number++
	s.r.fail(e)
	s.add(event{Type: "response.failed", Response: &s.r})
	return s.out
}

// belongs reports whether a delta belongs to an item.
func (it *Item) belongs(d *tools.Delta) bool {
	switch d.Kind {
	case tools.Reasoning:
		return it.Type == "reasoning"
	case tools.Content:
		return it.Type == "message"
	case tools.Begin, tools.Arguments, tools.End:
	}
	return d.Kind != tools.Begin && (it.Type == functionCall || it.Type == customCall)
}

func (s *stream) delta(d *tools.Delta) {
	switch {
	case d.Kind == tools.End:
		s.endItem(false)
		return
	case s.item == nil || !s.item.belongs(d):
		s.endItem(false)
		s.beginItem(d)
	}
	if d.Text == "" {
		return
	}
	e := s.at(event{Delta: &d.Text})
	switch s.item.Type {
	case customCall:
		s.wrote += d.Text // its text is in one piece: that of JSON is not the client's
		return
	case functionCall:
		*s.item.Arguments += d.Text
		e.Type, e.ContentIndex = "response.function_call_arguments.delta", nil
	case "reasoning":
		s.part.Text += d.Text
		e.Type = "response.reasoning_text.delta"
	default:
		s.part.Text += d.Text
		e.Type, e.Logprobs = "response.output_text.delta", &s.pairs
		*s.part.Logprobs = append(*s.part.Logprobs, s.pairs...)
	}
	s.add(e)
	if e.Logprobs != nil {
		s.pairs = []TextLogprob{}
	}
}

// at adds the position of the item in hand to an event.
func (s *stream) at(e event) event {
	index, zero := len(s.r.Output), 0
	e.OutputIndex, e.ItemID, e.ContentIndex = &index, s.item.ID, &zero
	return e
}

func (s *stream) beginItem(d *tools.Delta) {
	it := newItem(s.call, s.names, d, len(s.r.Output))
	s.item, s.wrote = &it, ""
	index := len(s.r.Output)
	s.add(event{Type: "response.output_item.added", OutputIndex: &index, Item: s.item})
	if it.Content == nil {
		return
	}
	s.part = newPart(it.Type)
	s.add(s.at(event{Type: "response.content_part.added", Part: &s.part}))
}

// endItem ends the item in hand.
func (s *stream) endItem(cut bool) {
	if s.item == nil {
		return
	}
	switch s.item.Type {
	case functionCall:
		e := s.at(event{Type: "response.function_call_arguments.done", Name: s.item.Name, Arguments: s.item.Arguments})
		e.ContentIndex = nil
		s.add(e)
	case customCall:
		s.item.setArguments(s.wrote)
		e := s.at(event{Type: "response.custom_tool_call_input.delta", Delta: s.item.Input})
		e.ContentIndex = nil
		s.add(e)
		e.Type, e.Delta, e.Input = "response.custom_tool_call_input.done", nil, s.item.Input
		s.add(e)
	case "reasoning":
		s.add(s.at(event{Type: "response.reasoning_text.done", Text: &s.part.Text}))
	default:
		s.add(s.at(event{Type: "response.output_text.done", Text: &s.part.Text, Logprobs: s.part.Logprobs}))
	}
	if s.item.Content != nil {
		s.add(s.at(event{Type: "response.content_part.done", Part: &s.part}))
		*s.item.Content = []ContentPart{s.part}
	}
	s.item.Status = "completed"
	if cut {
		s.item.Status = "incomplete"
	}
	index := len(s.r.Output)
	s.add(event{Type: "response.output_item.done", OutputIndex: &index, Item: s.item})
	s.r.Output = append(s.r.Output, *s.item)
	s.item = nil
}

func (s *stream) add(e event) {
	e.Number = s.number
	s.number++
	chunk, err := api.Marshal(e)
	if err != nil {
		chunk = EncodeStreamError(api.AsError(err))
	}
	s.out = append(s.out, chunk)
}
