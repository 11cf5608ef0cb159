package openai

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/jsonbody"
)

// function is a tool or a tool call in the form that templates expect. Raw JSON keeps the client's order
// of keys, because templates print them.
type function struct {
	ID       string `json:"id,omitempty"`
	Type     string `json:"type"`
	Function any    `json:"function"`
}

// toolCalls reads the assistant's tool calls of an earlier turn. OpenAI's arguments are a string that
// should hold a JSON object. Templates expect the object.
func (o *object) toolCalls() []any {
	items, ok := o.list("tool_calls", maxTools)
	if !ok {
		return nil
	}
	calls := make([]any, len(items))
	for i, raw := range items {
		made := o.open(fmt.Sprintf("tool_calls[%d]", i), raw)
		if made == nil {
			return nil
		}
		f := function{Type: "function"}
		made.str("id", &f.ID)
		if text := made.textCall(); text != nil {
			f.Function = text
		} else if fn := made.requireFunction(); fn != nil {
			var name string
			fn.str("name", &name)
			f.Function = calledFunction{name, fn.arguments()}
			made.adopt(fn)
		}
		o.adopt(made)
		calls[i] = f
	}
	return calls
}

// calledFunction is an earlier call in the form that templates expect.
type calledFunction struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// textCall reads an earlier call of a custom tool, which has one text in place of arguments. It returns nil for the call of a function.
func (o *object) textCall() any {
	kind := ""
	o.str("type", &kind)
	custom := o.child("custom")
	if kind != "custom" || custom == nil {
		return nil
	}
	var name, input string
	if custom.str("name", &name); name == "" {
		custom.fail("name", "expected a name")
	}
	custom.str("input", &input)
	o.adopt(custom)
	return calledFunction{name, json.RawMessage(call.TextArguments(input))}
}

// arguments returns the arguments of an earlier call as an object. Some clients send the object in place of a string.
func (o *object) arguments() json.RawMessage {
	raw, ok := o.get("arguments")
	if !ok {
		return call.Arguments("")
	}
	text := string(raw)
	decodeString(raw, &text)
	if n := jsonbody.Values([]byte(text)); n > jsonbody.MaxValues {
		o.fail("arguments", "expected at most %d values, found up to %d", jsonbody.MaxValues, n)
		return nil
	}
	return call.Arguments(text)
}

// requireFunction opens {"type": "function", "function": {"name": ...}}.
func (o *object) requireFunction() *object {
	kind := "function"
	o.str("type", &kind)
	if kind != "function" {
		o.fail("type", "only \"function\" is supported, found %s", api.Quote(kind))
	}
	fn := o.child("function")
	if fn == nil {
		o.fail("function", "expected an object")
		return nil
	}
	name := ""
	if fn.str("name", &name); name == "" {
		fn.fail("name", "expected a name")
	}
	o.adopt(fn)
	return fn
}

// maxToolName is the longest name of a tool, in bytes.
const maxToolName = 128

// tools reads the tools that the template describes to the model, and returns their names. Tools of other types than functions have no
// effect: the client offers what a server may run, and this one runs none.
func (o *object) tools() (list []any, names, ignored []string) {
	items, _ := o.list("tools", maxTools)
	for i, raw := range items {
		path := fmt.Sprintf("tools[%d]", i)
		tool := o.open(path, raw)
		if tool == nil {
			return nil, nil, nil
		}
		kind, name := "function", ""
		if tool.str("type", &kind); kind != "function" && tool.err == nil {
			ignored = append(ignored, call.Ignore(o.path+path, kind))
			continue
		}
		if fn := tool.requireFunction(); fn != nil {
			name = fn.toolFields()
			if slices.Contains(names, name) {
				fn.fail("name", "found %s a second time, expected different names", api.Quote(name))
			}
			tool.adopt(fn)
		}
		o.adopt(tool)
		list, names = append(list, raw), append(names, name)
	}
	return list, names, ignored
}

// toolFields checks the fields of a function and returns its name.
func (o *object) toolFields() (name string) {
	o.str("name", &name)
	if !validToolName(name) {
		o.fail("name", "expected 1 to %d letters, digits, '_', '-', '.' or '/', found %q", maxToolName, jsonbody.Snippet([]byte(name)))
	}
	var description string
	var strict bool
	o.str("description", &description)
	o.boolean("strict", &strict)
	if p := o.child("parameters"); p != nil {
		if raw, ok := p.get("type"); ok && !slices.Contains(typesOf(raw), "object") {
			p.expected("type", `"object"`, raw)
		}
		o.adopt(p)
	}
	return name
}

// typesOf are the types that the keyword "type" of a JSON schema lists.
func typesOf(raw json.RawMessage) (list []string) {
	var one string
	if decodeString(raw, &one) {
		return []string{one}
	}
	_ = json.Unmarshal(raw, &list) // of another type: none
	return list
}

func validToolName(name string) bool {
	if name == "" || len(name) > maxToolName {
		return false
	}
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-', c == '.', c == '/':
		default:
			return false
		}
	}
	return true
}

// toolChoices are the forms of "tool_choice".
const toolChoices = `"none", "auto", "required" or {"type": "function", "function": {"name": ...}}`

// toolChoice reads "tool_choice" and "parallel_tool_calls". names are those of the tools.
func (o *object) toolChoice(names []string) call.ToolChoice {
	t := call.ToolChoice{Param: o.path + "tool_choice"}
	parallel := true
	o.boolean("parallel_tool_calls", &parallel)
	t.Single = !parallel
	raw, ok := o.get("tool_choice")
	if !ok {
		return t
	}
	t.Found = jsonbody.Snippet(raw)
	word := ""
	switch {
	case raw[0] == '{':
		o.chosenTools(&t, names)
	case !decodeString(raw, &word):
		o.expected("tool_choice", toolChoices, raw)
	case word == "none":
		t.None = true
	case word == "required":
		t.Required = true
	case word != "auto":
		o.expected("tool_choice", toolChoices, raw)
	}
	return t
}

// chosenTools reads a "tool_choice" that names tools.
func (o *object) chosenTools(t *call.ToolChoice, names []string) {
	choice := o.child("tool_choice")
	kind := ""
	choice.str("type", &kind)
	switch kind {
	case "function":
		if fn := choice.requireFunction(); fn != nil {
			t.Required, t.Single, t.Allowed = true, true, []string{fn.knownTool(names)}
			choice.adopt(fn)
		}
	case "allowed_tools":
		choice.allowedTools(t, names)
	default:
		choice.fail("type", `expected "function" or "allowed_tools", found %s`, api.Quote(kind))
	}
	o.adopt(choice)
}

// knownTool reads a name that one of the tools has.
func (o *object) knownTool(names []string) (name string) {
	if o.str("name", &name); !slices.Contains(names, name) {
		o.fail("name", "found %q, expected the name of one of the tools", jsonbody.Snippet([]byte(name)))
	}
	return name
}

// allowedTools reads OpenAI's choice among several tools.
func (o *object) allowedTools(t *call.ToolChoice, names []string) {
	list := o.child("allowed_tools")
	if list == nil {
		o.fail("allowed_tools", "expected an object")
		return
	}
	mode := ""
	switch list.str("mode", &mode); mode {
	case "auto":
	case "required":
		t.Required = true
	default:
		list.fail("mode", `expected "auto" or "required", found %s`, api.Quote(mode))
	}
	items, _ := list.list("tools", maxTools)
	if len(items) == 0 {
		list.fail("tools", "expected at least one tool")
	}
	for i, raw := range items {
		tool := list.open(fmt.Sprintf("tools[%d]", i), raw)
		if tool == nil {
			break
		}
		if fn := tool.requireFunction(); fn != nil {
			t.Allowed = append(t.Allowed, fn.knownTool(names))
			tool.adopt(fn)
		}
		list.adopt(tool)
	}
	o.adopt(list)
}

// choose sets how the answer is generated and parsed.
func (o *object) choose(c *call.Call, models []api.Model, t *call.ToolChoice) {
	m := Served(models, c.Model)
	if o.err != nil || m == nil {
		return
	}
	if err := c.Choose(m, *t); err != nil {
		o.err = api.AsError(err)
	}
}

// efforts are OpenAI's values of "reasoning_effort".
var efforts = []string{"none", "minimal", "low", "medium", "high", "xhigh"}

// Effort returns OpenAI's name of an effort: the highest one of Anthropic and Ollama has another name.
func Effort(name string) string {
	if name == "max" {
		return "xhigh"
	}
	return name
}

// reasoningEffort hands "reasoning_effort" to the template, where chat_template_kwargs does not have it. Templates
// read one of three names.
func (o *object) reasoningEffort(r *api.Request) {
	effort := ""
	raw, ok := o.get("reasoning_effort")
	if !ok {
		return
	}
	if !decodeString(raw, &effort) || !slices.Contains(efforts, effort) {
		o.expected("reasoning_effort", fmt.Sprintf("one of %q", efforts), raw)
		return
	}
	args := map[string]any{"reasoning_effort": effort, "enable_thinking": effort != "none", "thinking": effort != "none"}
	maps.Copy(args, r.TemplateArgs)
	r.TemplateArgs = args
}
