package responses

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

// tool is a tool that the client offers. Its type says which fields it has.
type tool struct {
	Type        string            `json:"type"`
	Name        string            `json:"name"`
	Description *string           `json:"description"`
	Parameters  json.RawMessage   `json:"parameters"`
	Strict      *bool             `json:"strict"`
	Format      *toolFormat       `json:"format"` // of a custom tool
	Tools       []json.RawMessage `json:"tools"`  // of a namespace
}

// functionTool is a function, as an answer repeats it.
type functionTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description *string         `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      *bool           `json:"strict"`
}

// toolFormat is what the text of a custom tool has to be.
type toolFormat struct {
	Type       string `json:"type"`
	Syntax     string `json:"syntax"`
	Definition string `json:"definition"`
}

// The types of tools that the model can call.
const (
	function  = "function"
	custom    = "custom"    // its call has a text in place of arguments
	namespace = "namespace" // of functions and custom tools
)

// repeatedTools returns the tools as an answer repeats them: functions with all fields.
func repeatedTools(list []json.RawMessage) []json.RawMessage {
	all := make([]json.RawMessage, len(list))
	for i, raw := range list {
		all[i] = raw
		var one functionTool
		if json.Unmarshal(raw, &one) == nil && one.Type == function {
			all[i], _ = api.Marshal(one) // it was decoded from JSON
		}
	}
	return all
}

// qualified returns the name that the model knows a tool by. Templates have no namespaces.
func qualified(space, name string) string {
	if space == "" {
		return name
	}
	return space + "__" + name
}

// called is a tool in the client's terms.
type called struct {
	space, name string // space is the name of its namespace; "": none
	custom      bool
}

// clientNames returns the tools that the client knows in another way than the model, by the model's names.
func clientNames(list []json.RawMessage) map[string]called {
	all := map[string]called{}
	var add func(space string, list []json.RawMessage)
	add = func(space string, list []json.RawMessage) {
		for _, raw := range list {
			var one tool
			switch {
			case json.Unmarshal(raw, &one) != nil:
			case one.Type == namespace && space == "":
				add(one.Name, one.Tools)
			case one.Type == custom || one.Type == function && space != "":
				all[qualified(space, one.Name)] = called{space, one.Name, one.Type == custom}
			}
		}
	}
	add("", list)
	return all
}

func (t *translation) addTools(r *request) error {
	var list []any
	for i, raw := range r.Tools {
		if err := t.addTool(&list, raw, fmt.Sprintf("tools[%d]", i), ""); err != nil {
			return err
		}
	}
	if list != nil {
		t.out["tools"] = list
	}
	if r.Parallel != nil {
		t.out["parallel_tool_calls"] = *r.Parallel
	}
	return nil
}

// addTool adds a tool as a function. A namespace is its functions, and a custom tool is a function with one text. Others have no effect:
// the client offers what a server may run, and this one runs none.
func (t *translation) addTool(list *[]any, raw json.RawMessage, path, space string) error {
	var one tool
	if err := decodeAt(path, raw, &one, "a tool (an object)"); err != nil {
		return err
	}
	f := chat{"name": qualified(space, one.Name)}
	if one.Description != nil {
		f["description"] = *one.Description
	}
	switch {
	case one.Type == function:
		if len(one.Parameters) > 0 {
			f["parameters"] = one.Parameters
		}
		if one.Strict != nil {
			f["strict"] = *one.Strict
		}
	case one.Type == custom:
		t.addText(f, &one, path)
	case one.Type == namespace && space == "":
		if one.Name == "" {
			return invalid(path+".name", one.Name, "the name of a namespace")
		}
		for i, inner := range one.Tools {
			if err := t.addTool(list, inner, fmt.Sprintf("%s.tools[%d]", path, i), one.Name); err != nil {
				return err
			}
		}
		return nil
	case one.Type == "":
		return invalid(path+".type", one.Type, "function or another type")
	default:
		t.ignored = append(t.ignored, call.Ignore(path, one.Type))
		return nil
	}
	made := fmt.Sprintf("tools[%d]", len(*list))
	t.paths[made], t.paths[made+".function"] = path, path
	*list = append(*list, chat{"type": function, "function": f})
	return nil
}

// addText gives f the argument of a custom tool. The model learns of a grammar of its text; nothing enforces it.
func (t *translation) addText(f chat, one *tool, path string) {
	f["strict"] = true
	f["parameters"] = json.RawMessage(`{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}`)
	if one.Format == nil || one.Format.Definition == "" {
		return
	}
	t.ignored = append(t.ignored, call.Ignore(path+".format", one.Format.Type))
	description := ""
	if one.Description != nil {
		description = *one.Description + "\n\n"
	}
	f["description"] = fmt.Sprintf("%sThe input follows this grammar (%s):\n%s", description, one.Format.Syntax, one.Format.Definition)
}

// choice is a "tool_choice" that is an object.
type choice struct {
	Type      string            `json:"type"`
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Mode      string            `json:"mode"`
	Tools     []json.RawMessage `json:"tools"`
}

const choices = `"none", "auto", "required" or an object`

func (t *translation) addChoice(r *request) error {
	const field = "tool_choice"
	raw := r.ToolChoice
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var word string
	if json.Unmarshal(raw, &word) == nil {
		switch {
		case word != "none" && word != "auto" && word != "required":
			return invalid(field, word, choices)
		case word == "required" && t.out["tools"] == nil:
			return invalid(field, word, "auto or none without tools that this server can let the model call")
		}
		t.out[field] = word
		return nil
	}
	var c choice
	if err := decodeAt(field, raw, &c, choices); err != nil {
		return err
	}
	switch c.Type {
	case function, custom:
		t.out[field] = chat{"type": function, "function": chat{"name": qualified(c.Namespace, c.Name)}}
	case "allowed_tools":
		return t.allow(r, &c)
	default:
		return invalid(field+".type", c.Type, "function, custom or allowed_tools: this server runs no tools of its own")
	}
	return nil
}

// allow adds a choice among several tools. Those that the server cannot let the model call have no effect.
func (t *translation) allow(r *request, c *choice) error {
	var list []any
	for i, raw := range c.Tools {
		var one choice
		path := fmt.Sprintf("tool_choice.tools[%d]", i)
		if err := decodeAt(path, raw, &one, "a tool (an object)"); err != nil {
			return err
		}
		names := t.allowed(r, &one)
		if names == nil {
			t.ignored = append(t.ignored, call.Ignore(path, one.Type))
		}
		for _, name := range names {
			t.paths[fmt.Sprintf("tool_choice.allowed_tools.tools[%d].function", len(list))] = path
			list = append(list, chat{"type": function, "function": chat{"name": name}})
		}
	}
	if list == nil && len(c.Tools) > 0 {
		if c.Mode == "auto" {
			t.out["tool_choice"] = "none"
			return nil
		}
		return api.Invalid("tool_choice.tools",
			"tool_choice.tools: found no tool that this server can let the model call, expected one with the mode %q", c.Mode)
	}
	t.out["tool_choice"] = chat{"type": "allowed_tools", "allowed_tools": chat{"mode": c.Mode, "tools": list}}
	return nil
}

// allowed returns the names of the functions that an entry of a choice stands for.
func (t *translation) allowed(r *request, one *choice) (names []string) {
	switch one.Type {
	case function, custom:
		return []string{qualified(one.Namespace, one.Name)}
	case namespace:
		for name, tool := range clientNames(r.Tools) {
			if tool.space == one.Name {
				names = append(names, name)
			}
		}
		slices.Sort(names)
	}
	return names
}
