package responses

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

// item is one part of a conversation. Its type says which fields it has.
type item struct {
	Type      string          `json:"type"` // "" is a message
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	ID        string          `json:"id"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Namespace string          `json:"namespace"`
	Arguments json.RawMessage `json:"arguments"`
	Input     string          `json:"input"`
	Action    json.RawMessage `json:"action"`
	Operation json.RawMessage `json:"operation"`
	Output    json.RawMessage `json:"output"`
	Summary   json.RawMessage `json:"summary"`
}

// part is a part of the content of an item.
type part struct {
	Type    string `json:"type"`
	Text    string `json:"text"`
	Refusal string `json:"refusal"`
}

// elsewhere are the types of items that stand for work of other servers, which has no effect on a model without such tools.
var elsewhere = []string{"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "computer_call",
	"computer_call_output",
	"mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response", "tool_search_call", "tool_search_output",
	"additional_tools"}

// decodeAt decodes a value into v. The error of a wrong type names the field inside path.
func decodeAt(path string, raw json.RawMessage, v any, expected string) error {
	err := json.Unmarshal(raw, v)
	e, ok := err.(*json.UnmarshalTypeError) //nolint:errorlint // Unmarshal does not wrap it
	switch {
	case err == nil && string(raw) != "null":
		return nil
	case ok && e.Field != "":
		return api.Invalid(path+"."+e.Field, "%s.%s: found %s, expected %s", path, e.Field, e.Value, kindOf(e.Type.Kind().String()))
	}
	return api.Invalid(path, "%s: found %.48s, expected %s", path, raw, expected)
}

// kindOf returns the name of a JSON type for the kind of a Go type.
func kindOf(kind string) string {
	switch kind {
	case "struct", "map", "ptr":
		return "an object"
	case "slice":
		return "a list"
	case "bool":
		return "true or false"
	}
	return "a string"
}

// items returns the items of the input. A string is a message of the user.
func (r *request) items() ([]item, error) {
	if r.Input[0] == '"' {
		return []item{{Role: "user", Content: r.Input}}, nil
	}
	var raw []json.RawMessage
	if err := decodeAt("input", r.Input, &raw, "a string or a list of items"); err != nil {
		return nil, err
	}
	list := make([]item, len(raw))
	for i := range raw {
		if err := decodeAt(fmt.Sprintf("input[%d]", i), raw[i], &list[i], "an item (an object)"); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// text returns the text of content: a string, or a list of parts, which all must have text. With images, one becomes a note: a tool may
// return an image at any time, and a refusal would end the conversation.
func (t *translation) text(path string, raw json.RawMessage, images bool) (string, error) {
	const note = "(an image, which this model cannot see)"
	var text string
	if len(raw) == 0 || json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var list []json.RawMessage
	if err := decodeAt(path, raw, &list, "a string or a list of parts"); err != nil {
		return "", err
	}
	texts := make([]string, len(list))
	for i := range list {
		var one part
		at := fmt.Sprintf("%s[%d]", path, i)
		if err := decodeAt(at, list[i], &one, "a part (an object)"); err != nil {
			return "", err
		}
		switch {
		case slices.Contains([]string{"input_text", "output_text", "text", "reasoning_text", "summary_text"}, one.Type):
			texts[i] = one.Text
		case one.Type == "refusal":
			texts[i] = one.Refusal
		case one.Type == "input_image" && images:
			texts[i], t.ignored = note, append(t.ignored, call.Ignore(at, one.Type))
		default:
			return "", invalid(at+".type", one.Type, "input_text or output_text: only text is supported")
		}
	}
	return strings.Join(texts, "\n"), nil
}

// turn is the assistant's message in hand: its reasoning, text and calls are items of their own.
type turn struct {
	text, reasoning []string
	calls           []any
	first           string   // the path of its first item
	paths           []string // of its calls
}

func (t *turn) empty() bool { return len(t.text)+len(t.reasoning)+len(t.calls) == 0 }

func (t *turn) message() chat {
	m := chat{"role": "assistant", "content": strings.Join(t.text, "\n")}
	if len(t.reasoning) > 0 {
		m["reasoning_content"] = strings.Join(t.reasoning, "\n")
	}
	if len(t.calls) > 0 {
		m["tool_calls"] = t.calls
	}
	return m
}

// call adds a call to the turn.
func (t *turn) call(path, id, name string, arguments any) {
	t.calls = append(t.calls, chat{"id": id, "type": "function", "function": chat{"name": name, "arguments": arguments}})
	t.paths = append(t.paths, path)
}

// conversation is the messages of a chat in the making.
type conversation struct {
	*translation
	list []any
	turn turn
}

func (c *conversation) add(path string, m chat) {
	c.paths[fmt.Sprintf("messages[%d]", len(c.list))] = path
	c.list = append(c.list, m)
}

// endTurn adds the assistant's turn, if there is one.
func (c *conversation) endTurn() {
	for i, path := range c.turn.paths {
		made := fmt.Sprintf("messages[%d].tool_calls[%d]", len(c.list), i)
		c.paths[made], c.paths[made+".function"] = path, path
	}
	if !c.turn.empty() {
		c.add(c.turn.first, c.turn.message())
	}
	c.turn = turn{}
}

func (t *translation) addMessages(r *request) error {
	items, err := r.items()
	if err != nil {
		return err
	}
	c := conversation{translation: t}
	if r.Instructions != "" {
		c.add("instructions", chat{"role": "system", "content": r.Instructions})
	}
	for i := range items {
		path := fmt.Sprintf("input[%d]", i)
		if r.Input[0] == '"' {
			path = "input"
		}
		m, err := c.item(&items[i], path)
		switch {
		case err != nil:
			return err
		case m != nil:
			c.endTurn()
			c.add(path, m)
		case c.turn.first == "":
			c.turn.first = path
		}
	}
	c.endTurn()
	if c.list == nil {
		return api.Invalid("input", "input: found no item that this model can read, expected a message")
	}
	t.out["messages"] = c.list
	return nil
}

// item adds an item to the assistant's turn, or returns it as a message that ends the turn.
func (c *conversation) item(it *item, path string) (chat, error) {
	switch it.Type {
	case "", "message":
		return c.message(it, path)
	case "reasoning":
		text, err := c.text(path+".content", it.Content, false)
		if err == nil && text == "" {
			text, err = c.text(path+".summary", it.Summary, false)
		}
		if text != "" {
			c.turn.reasoning = append(c.turn.reasoning, text)
		}
		return nil, err
	case "function_call":
		c.turn.call(path, it.CallID, qualified(it.Namespace, it.Name), it.Arguments)
		return nil, nil
	case "custom_tool_call":
		c.turn.call(path, it.CallID, qualified(it.Namespace, it.Name), call.TextArguments(it.Input))
		return nil, nil
	case "local_shell_call", "shell_call":
		c.turn.call(path, it.CallID, strings.TrimSuffix(it.Type, "_call"), it.Action)
		return nil, nil
	case "apply_patch_call":
		c.turn.call(path, it.CallID, "apply_patch", it.Operation)
		return nil, nil
	case "function_call_output", "custom_tool_call_output":
		output, err := c.text(path+".output", it.Output, true)
		return chat{"role": "tool", "tool_call_id": it.CallID, "content": output}, err
	case "local_shell_call_output", "shell_call_output", "apply_patch_call_output":
		output := string(it.Output)
		json.Unmarshal(it.Output, &output) //nolint:errcheck // what is no string stays JSON
		if it.CallID == "" {
			it.CallID = it.ID
		}
		return chat{"role": "tool", "tool_call_id": it.CallID, "content": output}, nil
	}
	if slices.Contains(elsewhere, it.Type) {
		c.ignored = append(c.ignored, call.Ignore(path, it.Type))
		return nil, nil
	}
	return nil, invalid(path+".type", it.Type, "message, reasoning, a call of a tool or its output")
}

func (c *conversation) message(it *item, path string) (chat, error) {
	text, err := c.text(path+".content", it.Content, false)
	if err != nil {
		return nil, err
	}
	switch it.Role {
	case "assistant":
		c.turn.text = append(c.turn.text, text)
		return nil, nil
	case "user", "system", "developer":
		return chat{"role": it.Role, "content": text}, nil
	}
	return nil, invalid(path+".role", it.Role, "user, assistant, system or developer")
}
