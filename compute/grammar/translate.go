package grammar

import (
	"encoding/json"
	"fmt"
	"strings"
)

// program returns what the engine compiles for a spec: a JSONSchema, a Regex or a Lark grammar.
func (s *Spec) program() (Kind, string, error) {
	switch s.Kind {
	case JSONObject:
		return JSONSchema, `{"type":"object"}`, nil
	case Choice:
		source, err := choiceGrammar(s.Source)
		return Lark, source, err
	case JSONSchema, Regex:
	case Lark:
		if !isEBNF(s.Source) {
			return Lark, s.Source, nil
		}
		source, err := larkOfEBNF(s.Source)
		return Lark, source, err
	}
	return s.Kind, s.Source, nil
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
