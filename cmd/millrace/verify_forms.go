package main

import (
	"bytes"
	"encoding/json"
	"iter"
	"strings"

	"github.com/millrace/millrace/client"
)

// Answers of the Responses API and of the Messages API are compared as the choice of a chat is: their items and blocks are its reasoning,
// content and tool calls.

const pathResponses, pathMessages = "/v1/responses", "/v1/messages"

// form is an answer of the Responses API, or of the Messages API, or an event of a stream of it.
type form struct {
	Object, Type string
	Proof        json.RawMessage

	// The next three belong to the Responses API.
	Response *form // of an event
	Status   string
	Output   []struct {
		Type, Name, Arguments string
		Content               []struct{ Text string }
	}

	// The next ones belong to the Messages API, Block and Delta to its events.
	messageEnd
	Content []messageBlock
	Block   messageBlock    `json:"content_block"`
	Delta   json.RawMessage // an object in this API
}

type messageEnd struct {
	StopReason   string `json:"stop_reason"`
	StopSequence string `json:"stop_sequence"`
}

type messageBlock struct {
	Type, Name, Text, Thinking string
	Input                      json.RawMessage
	Partial                    string `json:"partial_json"` // in a delta: a part of Input
}

// otherForm reads an answer of the Responses API or of the Messages API, whole or as a stream. The path is "" for another answer.
func otherForm(data []byte) (a *client.Response, path string) {
	a = &client.Response{Choices: make([]client.Choice, 1)}
	ch := &a.Choices[0]
	for object := range objectsOf(data) {
		var f form
		if err := json.Unmarshal(object, &f); err != nil {
			continue // the reader of the other forms says what is wrong
		}
		if f.Response != nil {
			f = *f.Response
		}
		switch {
		case f.Object == "response":
			*ch, a.Proof, path = f.choice(), f.Proof, pathResponses // of a stream the last one counts
		case f.Type == "message" || strings.HasPrefix(f.Type, "message_") || strings.HasPrefix(f.Type, "content_block_"):
			path = pathMessages
			f.addTo(ch)
			if f.Proof != nil {
				a.Proof = f.Proof
			}
		}
	}
	if path == pathMessages {
		for i := range ch.Message.ToolCalls {
			compact(&ch.Message.ToolCalls[i].Function)
		}
	}
	return a, path
}

// choice returns an answer of the Responses API as a choice.
func (f *form) choice() (ch client.Choice) {
	ch.FinishReason = f.Status
	for _, it := range f.Output {
		var text strings.Builder
		for _, part := range it.Content {
			text.WriteString(part.Text)
		}
		switch it.Type {
		case "message":
			ch.Message.Content += text.String()
		case "reasoning":
			ch.Message.Reasoning += text.String()
		case "function_call":
			ch.Message.ToolCalls = append(ch.Message.ToolCalls,
				client.ToolCall{Function: client.FunctionCall{Name: it.Name, Arguments: it.Arguments}})
		}
	}
	return ch
}

// addTo adds an answer of the Messages API, or an event of one, to a choice.
func (f *form) addTo(ch *client.Choice) {
	m := &ch.Message
	end := f.messageEnd
	for _, b := range append(f.Content, f.Block) {
		m.Content, m.Reasoning = m.Content+b.Text, m.Reasoning+b.Thinking
		if b.Type == "tool_use" {
			m.ToolCalls = append(m.ToolCalls, client.ToolCall{Function: client.FunctionCall{Name: b.Name, Arguments: string(b.Input)}})
		}
	}
	if f.Delta != nil {
		var d struct {
			messageBlock
			messageEnd
		}
		if json.Unmarshal(f.Delta, &d) != nil {
			return
		}
		end = d.messageEnd
		m.Content, m.Reasoning = m.Content+d.Text, m.Reasoning+d.Thinking
		if n := len(m.ToolCalls); n > 0 && d.Partial != "" {
			last := &m.ToolCalls[n-1].Function
			last.Arguments = strings.TrimPrefix(last.Arguments, "{}") + d.Partial // a block begins with an empty input
		}
	}
	if end.StopReason != "" {
		ch.FinishReason = strings.TrimSpace(end.StopReason + " " + end.StopSequence)
	}
}

// compact writes the arguments of a call as a whole answer has them: without spaces, and none for a call that was cut.
func compact(f *client.FunctionCall) {
	var b bytes.Buffer
	if json.Compact(&b, []byte(f.Arguments)) != nil {
		b.Reset()
		b.WriteString("{}")
	}
	f.Arguments = b.String()
}

// objectsOf yields the JSON objects of a saved answer: itself, or the lines of a stream. Other lines are the frame of server-sent events.
func objectsOf(data []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if json.Valid(data) {
			yield(data)
			return
		}
		for line := range bytes.Lines(data) {
			line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("data:")))
			if bytes.HasPrefix(line, []byte("{")) && !yield(line) {
				return
			}
		}
	}
}
