package responses

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

// kept are the fields of a request that its call keeps: its answer repeats the first ones, and a stored response has the input.
type kept struct {
	Repeated
	Input json.RawMessage `json:"input,omitempty"`
}

// prefix is that of the IDs of responses, and callPrefix that of the IDs of their calls.
const prefix, callPrefix = "resp_", "chatcmpl-"

// IDOf returns the ID of a call's response.
func IDOf(c *call.Call) string { return prefix + suffix(c) }

// CallID returns the ID of the call that a response is the answer to, "" if the text is not the ID of a response.
func CallID(id string) string {
	rest, ok := strings.CutPrefix(id, prefix)
	if !ok || rest == "" || !call.ValidID(callPrefix+rest) {
		return ""
	}
	return callPrefix + rest
}

// Wants is what the client of a call wants beside the answer. It is zero for calls of other APIs.
type Wants struct {
	Store      bool   // the response is stored
	Background bool   // the client does not wait for it
	Previous   string // ID of the response that the conversation continues; "": none
}

// Wanted returns what the client of a call wants.
func Wanted(c *call.Call) (w Wants) {
	var k kept
	if c.Kind != call.Responses || json.Unmarshal(c.Repeated, &k) != nil {
		return w
	}
	w.Store, w.Background = k.Store, k.Background
	if k.PreviousID != nil {
		w.Previous = *k.PreviousID
	}
	return w
}

// NotStored makes the answer of a call say that it is not stored.
func NotStored(c *call.Call) {
	var k kept
	if c.Kind != call.Responses || json.Unmarshal(c.Repeated, &k) != nil {
		return
	}
	k.Store, k.Input = false, nil
	if body, err := json.Marshal(k); err == nil {
		c.Repeated = body
	}
}

// instructed returns the number of messages that a call has before the conversation.
func instructed(c *call.Call) int {
	var k kept
	if json.Unmarshal(c.Repeated, &k) == nil && k.Instructions != nil {
		return 1
	}
	return 0
}

// Continue puts an earlier conversation before the one of a call. Instructions of earlier requests are not a part of it.
func Continue(c *call.Call, earlier []api.Message) {
	r, n := c.Requests[0], instructed(c)
	all := append([]api.Message{}, r.Messages[:n]...)
	r.Messages = append(append(all, earlier...), r.Messages[n:]...)
}

// Conversation returns the messages of a call and its answer, for Continue.
func Conversation(c *call.Call, r *call.Result) []api.Message {
	ch := &r.Choices[0]
	m := api.Message{Role: "assistant", Content: ch.Text, Reasoning: ch.Reasoning}
	for _, one := range ch.Calls {
		f := struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		}{one.Name, call.Arguments(one.Arguments)}
		m.ToolCalls = append(m.ToolCalls, struct {
			ID       string `json:"id"`
			Type     string `json:"type"`
			Function any    `json:"function"`
		}{one.ID, "function", f})
	}
	return append(append([]api.Message{}, c.Requests[0].Messages[instructed(c):]...), m)
}

// InputItems returns the items of a call's input, each with an ID, in their order.
func InputItems(c *call.Call) ([]json.RawMessage, error) {
	var k kept
	if err := json.Unmarshal(c.Repeated, &k); err != nil {
		return nil, err
	}
	var text string
	var raw []map[string]json.RawMessage
	if json.Unmarshal(k.Input, &text) == nil {
		content, _ := json.Marshal(text) // strings always marshal
		raw = []map[string]json.RawMessage{{"role": json.RawMessage(`"user"`), "content": content}}
	} else if err := json.Unmarshal(k.Input, &raw); err != nil {
		return nil, err
	}
	items := make([]json.RawMessage, len(raw))
	for i, it := range raw {
		complete(it, fmt.Sprintf("%s_in%d", suffix(c), i))
		body, err := api.Marshal(it)
		if err != nil {
			return nil, err
		}
		items[i] = body
	}
	return items, nil
}

// complete adds the fields of an input item that clients may leave out.
func complete(it map[string]json.RawMessage, id string) {
	quoted := func(s string) json.RawMessage { return json.RawMessage(`"` + s + `"`) }
	if it["type"] == nil {
		it["type"] = quoted("message")
	}
	var kind, role, text string
	json.Unmarshal(it["type"], &kind) //nolint:errcheck // Decode has checked it
	json.Unmarshal(it["role"], &role) //nolint:errcheck // as above
	if it["id"] == nil {
		short := map[string]string{"message": "msg_", "reasoning": "rs_", functionCall: "fc_", "function_call_output": "fco_",
			customCall:                "ctc_",
			"custom_tool_call_output": "ctco_"}
		it["id"] = quoted(cmp.Or(short[kind], "item_") + id)
	}
	if it["status"] == nil {
		it["status"] = quoted("completed")
	}
	if kind == "message" && json.Unmarshal(it["content"], &text) == nil {
		part := struct {
			Type        string    `json:"type"`
			Text        string    `json:"text"`
			Annotations *[]string `json:"annotations,omitempty"`
		}{"input_text", text, nil}
		if role == "assistant" {
			part.Type, part.Annotations = "output_text", &[]string{}
		}
		it["content"], _ = api.Marshal([]any{part}) // strings always marshal
	}
}

// EncodeStatus returns the body of a response without an answer: queued, in_progress, cancelled, or failed with an error.
func EncodeStatus(c *call.Call, status string, e *api.Error) ([]byte, error) {
	r := newResponse(c)
	if e != nil {
		r.fail(e)
	}
	r.Status = status
	return api.Marshal(&r)
}
