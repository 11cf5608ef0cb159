package call

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/millrace/millrace/api"
)

// argument is the name that arguments get in a template if they are no object.
const argument = "input"

// Arguments returns the arguments of an earlier call as the object that templates print. Any text gives one, because clients send back what
// a server has answered: the beginning of an object, which a token limit has cut, is closed, and other text or another value becomes the
// object {"input": ...}.
func Arguments(text string) json.RawMessage {
	text = strings.TrimSpace(text)
	if text == "" { // some clients write that for no arguments
		return json.RawMessage("{}")
	}
	if isObject(text) {
		return json.RawMessage(text)
	}
	value := json.RawMessage(text)
	var inner string
	switch {
	case text == "null":
		return json.RawMessage("{}")
	case json.Unmarshal(value, &inner) == nil && isObject(inner): // encoded twice
		return json.RawMessage(inner)
	case json.Valid(value):
	case text[0] == '{' && isObject(closeJSON(text)):
		return json.RawMessage(closeJSON(text))
	default:
		value = quote(text)
	}
	return append(append([]byte(`{"`+argument+`":`), value...), '}')
}

// TextArguments returns the arguments of a call that has one text in place of an object.
func TextArguments(text string) string {
	return `{"` + argument + `":` + string(quote(text)) + `}`
}

// TextOf returns the text of a call whose arguments TextArguments describes. It returns other arguments as they are.
func TextOf(arguments string) string {
	var object map[string]json.RawMessage
	var text string
	if json.Unmarshal(Arguments(arguments), &object) != nil || json.Unmarshal(object[argument], &text) != nil {
		return arguments
	}
	return text
}

// quote returns a text as a JSON string without the escapes of <, > and &.
func quote(text string) []byte {
	quoted, err := api.Marshal(text)
	if err != nil { // a string always has a JSON form
		return []byte(`""`)
	}
	return quoted
}

func isObject(text string) bool {
	var v map[string]json.RawMessage
	return json.Unmarshal([]byte(text), &v) == nil && v != nil
}

// closeJSON returns the beginning of a JSON value with its strings, lists and objects closed. A part that is not complete in another way is
// left out: a name without a value, or half of a number.
func closeJSON(text string) string {
	var open, safeOpen []byte // the ends of what is open, the innermost last: at the end of the text, and at safe
	safe, inString, escape := 0, false, 0
	for i := range len(text) {
		c := text[i]
		switch {
		case inString && escape < i && c == '\\':
			escape = i + 1
			if i+1 < len(text) && text[i+1] == 'u' {
				escape = i + 5
			}
			continue
		case inString && (escape >= i && escape > 0 || c != '"'):
			continue
		case c == '"':
			inString = !inString
			continue
		case c == '{':
			open = append(open, '}')
		case c == '[':
			open = append(open, ']')
		case c == '}' || c == ']':
			open = open[:max(len(open)-1, 0)]
		case c != ',':
			continue
		}
		safe, safeOpen = i+1, append(safeOpen[:0], open...)
		if c == ',' {
			safe = i
		}
	}
	whole := text
	if inString {
		if escape >= len(text) {
			whole = text[:strings.LastIndexByte(text, '\\')]
		}
		whole += `"`
	}
	if whole += closers(open); json.Valid([]byte(whole)) {
		return whole
	}
	return text[:safe] + closers(safeOpen)
}

// closers returns the ends of what is open, the innermost first.
func closers(open []byte) string {
	var b strings.Builder
	for _, o := range slices.Backward(open) {
		b.WriteByte(o)
	}
	return b.String()
}
