package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/grammar/schema"
)

// SchemaError is a tool whose parameters have no grammar.
type SchemaError struct {
	Tool string // name
	Path string // of the fault, inside of the parameters; "" is all of them
	Err  error
}

// Error returns the tool and the reason.
func (e *SchemaError) Error() string { return fmt.Sprintf("tool %q: %v", e.Tool, e.Err) }

// Unwrap returns the reason.
func (e *SchemaError) Unwrap() error { return e.Err }

// noParameters are those of a function that takes none.
const noParameters = `{"type":"object","properties":{},"additionalProperties":false}`

// ruled returns a tool with the parameters that a grammar follows: those of an object, whatever the schema says, in the keywords that the
// grammar engine knows. What cannot be enforced is an error for a strict tool, and dropped for another one.
func ruled(t *Tool) (Tool, error) {
	out := *t
	out.Parameters = json.RawMessage(noParameters)
	if len(t.Parameters) == 0 || string(t.Parameters) == "null" {
		return out, nil
	}
	text, err := schema.Rewrite(string(t.Parameters), schema.Options{Object: true, Loose: !t.Strict})
	if err != nil {
		e := &SchemaError{Tool: t.Name, Err: err}
		if at, ok := errors.AsType[*schema.Error](err); ok {
			e.Path = at.Path
		}
		return out, e
	}
	if out.Parameters, err = closed(text); err != nil {
		return out, &SchemaError{Tool: t.Name, Err: err}
	}
	return out, nil
}

// closed forbids properties that a schema does not list, where it lists some, or says that there are none: a model invents them.
func closed(source string) (json.RawMessage, error) {
	var fields, listed map[string]json.RawMessage
	var required []string
	if err := json.Unmarshal([]byte(source), &fields); err != nil {
		return nil, err
	}
	if json.Unmarshal(fields["properties"], &listed) != nil || len(fields["required"]) > 0 &&
		json.Unmarshal(fields["required"], &required) != nil {
		return json.RawMessage(source), nil //nolint:nilerr // the compilation says what is wrong
	}
	for name := range fields {
		if !slices.Contains([]string{"type", "properties", "required", "$defs"}, name) {
			return json.RawMessage(source), nil // it says more
		}
	}
	for _, name := range required {
		if _, known := listed[name]; !known {
			return json.RawMessage(source), nil
		}
	}
	return json.RawMessage(strings.TrimSuffix(source, "}") + `,"additionalProperties":false}`), nil
}

// wholeText returns a pattern that begins with ^ and ends with $ as the expression of the whole text, "" for another one.
func wholeText(pattern string) string {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil || parsed.Op != syntax.OpConcat || len(parsed.Sub) < 3 {
		return ""
	}
	inner := parsed.Sub[1 : len(parsed.Sub)-1]
	if parsed.Sub[0].Op != syntax.OpBeginText || parsed.Sub[len(inner)+1].Op != syntax.OpEndText || slices.ContainsFunc(inner, places) {
		return ""
	}
	parsed.Sub = inner
	return strings.ReplaceAll(parsed.String(), "/", `\/`)
}

// places reports whether an expression has a condition of its place, such as the beginning of a word.
func places(r *syntax.Regexp) bool {
	switch r.Op {
	case syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return true
	default:
		return slices.ContainsFunc(r.Sub, places)
	}
}
