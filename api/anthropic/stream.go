package anthropic

import (
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/proof"
	"github.com/millrace/millrace/api/tools"
)

// Events of a stream. Their first field is "type", which is also the name of the server-sent event.
type (
	messageStart struct {
		Type    string        `json:"type"`
		Message MessageAnswer `json:"message"`
	}
	blockStart struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
		Block Block  `json:"content_block"`
	}
	blockDelta struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
		Delta delta  `json:"delta"`
	}
	delta struct {
		Type     string  `json:"type"`
		Text     *string `json:"text,omitempty"`
		Thinking *string `json:"thinking,omitempty"`
		JSON     *string `json:"partial_json,omitempty"`
	}
	blockStop struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
	}
	messageDelta struct {
		Type  string     `json:"type"`
		Delta stopDelta  `json:"delta"`
		Usage TokenUsage `json:"usage"`

		Proof *proof.Proof `json:"proof,omitempty"`
	}
	stopDelta struct {
		StopReason   string  `json:"stop_reason"`
		StopSequence *string `json:"stop_sequence"`
	}
	messageStop struct {
		Type string `json:"type"`
	}
)

// stream encodes the events of a call. It has no state but that of its events.
type stream struct {
	call   *call.Call
	parser *call.Parser
	index  int    // of the block in hand
	kind   string // its type; "": none
	finish api.Finish
	stop   string
	proof  *proof.Recorder
	out    [][]byte
}

// NewStream returns the encoder of a streamed answer.
func NewStream(c *call.Call, _ string) call.Encoder {
	return &stream{call: c, parser: call.NewParser(c), index: -1, proof: proof.NewRecorder(c)}
}

// Observe does nothing: no chunk has a digest.
func (*stream) Observe(api.Event) {}

// Open returns the start of the message. Its usage is not known yet: the end of the message has it.
func (s *stream) Open() [][]byte {
	s.out = s.out[:0]
	s.add(messageStart{"message_start", MessageAnswer{ID: messageID(s.call), Type: "message", Role: "assistant", Model: s.call.Model,
		Content: []Block{},
		Usage:   usageOf(api.Usage{}, 0)}})
	return s.out
}

// Encode returns the chunks of an event.
func (s *stream) Encode(ev api.Event) [][]byte {
	s.out = s.out[:0]
	deltas, finish := s.parser.Deltas(&ev)
	s.proof.Add(&ev, finish)
	for i := range deltas {
		s.delta(&deltas[i])
	}
	if finish != api.FinishNone {
		s.endBlock()
		s.finish, s.stop = finish, ev.Stop
	}
	if ev.Done {
		s.end(ev.Usage)
	}
	return s.out
}

// end adds the end of the message.
func (s *stream) end(u *api.Usage) {
	d := messageDelta{Type: "message_delta"}
	d.Delta.StopReason, d.Delta.StopSequence = stopReason(s.finish, s.stop)
	if u != nil {
		thinking, _ := s.parser.Reasoning()
		d.Usage = usageOf(*u, thinking)
	}
	d.Proof = s.proof.Proof()
	s.add(d)
	s.add(messageStop{"message_stop"})
}

func (s *stream) delta(d *tools.Delta) {
	if t := blockType(d.Kind); d.Kind == tools.Begin || t != s.kind && d.Kind != tools.End {
		s.endBlock()
		s.index++
		s.kind = t
		s.add(blockStart{"content_block_start", s.index, newBlock(*d)})
	}
	if d.Text == "" {
		return
	}
	var out delta
	switch s.kind {
	case "text":
		out = delta{Type: "text_delta", Text: &d.Text}
	case "thinking":
		out = delta{Type: "thinking_delta", Thinking: &d.Text}
	default:
		out = delta{Type: "input_json_delta", JSON: &d.Text}
	}
	s.add(blockDelta{"content_block_delta", s.index, out})
}

func (s *stream) endBlock() {
	if s.kind != "" {
		s.add(blockStop{"content_block_stop", s.index})
		s.kind = ""
	}
}

func (s *stream) add(v any) {
	chunk, err := api.Marshal(v)
	if err != nil {
		chunk = EncodeError(api.AsError(err))
	}
	s.out = append(s.out, chunk)
}
