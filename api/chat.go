package api

import (
	"encoding/json"
	"slices"
)

// EncodeChat returns the JSON of the parts of a chat that its template prints. A part that is nil
// gives nil.
func EncodeChat(messages []Message, tools []any, args map[string]any) (messagesJSON, toolsJSON, argsJSON []byte, err error) {
	for _, f := range []struct {
		to    *[]byte
		value any
		none  bool
	}{{&messagesJSON, messages, messages == nil}, {&toolsJSON, tools, tools == nil}, {&argsJSON, args, args == nil}} {
		if f.none {
			continue
		}
		if *f.to, err = json.Marshal(f.value); err != nil {
			return nil, nil, nil, err
		}
	}
	return messagesJSON, toolsJSON, argsJSON, nil
}

// DecodeChat is the inverse of EncodeChat. Tool calls, tools and template arguments are
// json.RawMessage, which keeps the order of their keys: templates print them.
func DecodeChat(messagesJSON, toolsJSON, argsJSON []byte) ([]Message, []any, map[string]any, error) {
	var list []struct {
		Message
		ToolCalls []json.RawMessage `json:"tool_calls"`
	}
	var rawTools []json.RawMessage
	var rawArgs map[string]json.RawMessage
	for _, f := range []struct {
		from []byte
		to   any
	}{{messagesJSON, &list}, {toolsJSON, &rawTools}, {argsJSON, &rawArgs}} {
		if len(f.from) == 0 {
			continue
		}
		if err := json.Unmarshal(f.from, f.to); err != nil {
			return nil, nil, nil, err
		}
	}
	var messages []Message
	if list != nil {
		messages = make([]Message, len(list))
	}
	for i := range list {
		messages[i] = list[i].Message
		messages[i].ToolCalls = values(list[i].ToolCalls)
	}
	var args map[string]any
	if rawArgs != nil {
		args = make(map[string]any, len(rawArgs))
	}
	for k, v := range rawArgs {
		args[k] = v
	}
	return messages, values(rawTools), args, nil
}

// values returns a list of JSON values, nil for an empty list.
func values(raw []json.RawMessage) (all []any) {
	all = slices.Grow(all, len(raw))
	for _, v := range raw {
		all = append(all, v)
	}
	return all
}
