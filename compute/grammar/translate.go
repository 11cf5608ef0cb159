package grammar

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/millrace/millrace/compute/grammar/schema"
)

// guidance is the member of a schema with the engine's options.
const guidance = `"x-guidance":`

// guided returns a rewritten schema with the white space of the spec.
func (s *Spec) guided(source string) string {
	space := s.WhiteSpace
	if space == "" {
		space = fmt.Sprintf(`[ \t]|\r?\n[ \t]{0,%d}`, MaxIndent)
	}
	options := map[string]any{"whitespace_pattern": space}
	if s.Compact {
		options = map[string]any{"whitespace_flexible": false}
	}
	text, err := json.Marshal(options)
	rest, isObject := strings.CutPrefix(source, "{")
	if err != nil || !isObject { // strings have a JSON form, and the schema may be true
		return s.guided("{}")
	}
	comma := ","
	if rest == "}" {
		comma = ""
	}
	return "{" + guidance + string(text) + comma + rest
}

// embedded rewrites the JSON schemas in a Lark grammar that have no options of the engine.
func (s *Spec) embedded(source string) (string, error) {
	const keyword = "%json"
	var out strings.Builder
	for {
		before, after, found := strings.Cut(source, keyword)
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		out.WriteString(keyword)
		source = after
		d := json.NewDecoder(strings.NewReader(after))
		var raw json.RawMessage
		if d.Decode(&raw) != nil || raw[0] != '{' || strings.Contains(string(raw), guidance) {
			continue // the engine says what is wrong
		}
		text, err := schema.Rewrite(string(raw), schema.Options{})
		if err != nil {
			return "", fmt.Errorf("%w: line %d: %w", ErrSpec, 1+strings.Count(out.String(), "\n"), err)
		}
		out.WriteString(" " + s.guided(text))
		source = after[d.InputOffset():]
	}
}

// Program returns what an engine compiles for a spec: a JSONSchema, a Regex or a Lark grammar.
func (s *Spec) Program() (Kind, string, error) {
	switch s.Kind {
	case JSONObject:
		return JSONSchema, s.guided(`{"type":"object"}`), nil
	case JSONSchema:
		source, err := schema.Rewrite(s.Source, schema.Options{})
		if err != nil {
			return "", "", fmt.Errorf("%w: %w", ErrSpec, err)
		}
		return JSONSchema, s.guided(source), nil
	case Choice:
		source, err := choiceGrammar(s.Source)
		return Lark, source, err
	case Regex:
	case Lark:
		if !isEBNF(s.Source) {
			source, err := s.embedded(s.Source)
			return Lark, source, err
		}
		source, err := larkOfEBNF(s.Source)
		return Lark, source, err
	}
	return s.Kind, s.Source, nil
}

var (
	larkPlace = regexp.MustCompile(`line \d+, column \d+: `)
	larkName  = regexp.MustCompile(`"[rT](\d+)"`)
)

// explained returns an error of the engine with the names of the source. Only EBNF has others in its translation.
func (s *Spec) explained(err error) error {
	if err == nil || s.Kind != Lark || !isEBNF(s.Source) {
		return err
	}
	p := ebnf{rest: s.Source, line: 1}
	_, order, _ := p.rules()
	text := larkPlace.ReplaceAllString(err.Error(), "")
	text = larkName.ReplaceAllStringFunc(text, func(name string) string {
		if i, err := strconv.Atoi(name[2 : len(name)-1]); err == nil && i < len(order) {
			return strconv.Quote(order[i])
		}
		return name
	})
	return fmt.Errorf("%w: %s", ErrSpec, strings.TrimPrefix(text, ErrSpec.Error()+": "))
}

// choiceGrammar is one terminal: the engine follows all choices at once, also where one begins like another.
func choiceGrammar(source string) (string, error) {
	var choices []string
	if err := json.Unmarshal([]byte(source), &choices); err != nil || len(choices) == 0 {
		return "", fmt.Errorf("%w: expected a list of strings", ErrSpec)
	}
	var b strings.Builder
	b.WriteString("start: CHOICE\nCHOICE: ")
	for i, choice := range choices {
		if i > 0 {
			b.WriteString(" | ")
		}
		b.WriteString(literal(choice))
	}
	b.WriteByte('\n')
	return b.String(), nil
}

// literal is a text as a Lark string: that of JSON, with its control characters as escapes.
func literal(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil { // a string has none
		return `""`
	}
	return strings.ReplaceAll(string(quoted), "\x7f", `\u007f`)
}
