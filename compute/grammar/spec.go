// Package grammar constrains the tokens of an answer: to a JSON schema, a regular expression, a list of
// choices or a context-free grammar. A Spec says what a request wants. An Engine compiles it. A Matcher
// follows one sequence: it says which tokens may come next, and it is rebuilt from the sequence's tokens.
//
// It must not know requests, models or how an engine works.
package grammar

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ErrSpec is the error of a Spec that cannot be compiled, with the reason.
var ErrSpec = errors.New("cannot be compiled")

// Kind is the language of a Spec's source.
type Kind string

// The languages.
const (
	JSONSchema Kind = "json_schema" // a JSON schema
	JSONObject Kind = "json_object" // any JSON object; without a source
	Regex      Kind = "regex"       // a regular expression that the whole answer matches
	Choice     Kind = "choice"      // a JSON list of strings, one of which is the answer
	Lark       Kind = "lark"        // a context-free grammar in the Lark syntax of llguidance, or in EBNF (root ::= ...)
)

// The limits of a Spec, in bytes.
const (
	MaxSource = 256 << 10
	MaxMarker = 256
)

// MaxIndent is the largest number of blanks after a line end between the parts of JSON. Without a line end one blank may stand there.
const MaxIndent = 20

// Note begins a comment at the end of a line of Lark: where the request has the line's schema, for errors.
const Note = " //@ "

// Spec says what an answer may be. It is a value: equal specs allow the same answers.
type Spec struct {
	Kind   Kind
	Source string // in the language of Kind
	Param  string // the request's field that has it, such as "guided_regex", for errors; never empty

	// After is a text of the answer after which the grammar begins, such as "</think>". The text before it
	// is free. No token has bytes on both sides of its end. "": the grammar begins at once.
	After string
	// Optional allows an answer that ends without After. Else such an answer cannot end.
	Optional bool
	// SkipTo ends a part of the answer in which After does not count, such as "</think>". "": there is no such part.
	SkipTo string
	// SkipFrom begins that part, at the beginning of the answer but for white space. Where it does not come, there is no such part. "": the
	// answer begins inside it.
	SkipFrom string
	// Opening is a text, such as "<think>", with which the free part begins, at the beginning of the answer. Where it does not come, the
	// grammar begins at once. "": the answer begins inside the free part. With it SkipTo has no effect.
	Opening string
	// Repeat makes the answer free again where the grammar ends, up to the next After. Else the
	// answer ends there.
	Repeat bool

	// Compact allows no white space between the parts of JSON.
	Compact bool
	// WhiteSpace is a regular expression of the white space that may stand between the parts of JSON. "": see MaxIndent. Without effect if
	// Compact.
	WhiteSpace string
}

// Validate checks what a decoder cannot have checked. The error is ErrSpec.
func (s *Spec) Validate() error {
	switch s.Kind {
	case JSONSchema, JSONObject, Regex, Choice, Lark:
	default:
		return fmt.Errorf("%w: found kind %.40q, expected one of %q", ErrSpec, s.Kind, []Kind{JSONSchema, JSONObject, Regex, Choice, Lark})
	}
	switch {
	case len(s.Source) > MaxSource:
		return fmt.Errorf("%w: found %d bytes, expected at most %d", ErrSpec, len(s.Source), MaxSource)
	case (s.Source == "") != (s.Kind == JSONObject):
		return fmt.Errorf("%w: found a %s of %d bytes", ErrSpec, s.Kind, len(s.Source))
	case max(len(s.After), len(s.SkipTo), len(s.SkipFrom), len(s.Opening)) > MaxMarker:
		return fmt.Errorf("%w: found texts of %d, %d, %d and %d bytes before the grammar, expected at most %d", ErrSpec, len(s.After),
			len(s.SkipFrom), len(s.SkipTo), len(s.Opening), MaxMarker)
	case s.After == "" && (s.Optional || s.Repeat || s.SkipTo != "" || s.Opening != ""):
		return fmt.Errorf("%w: found an optional or repeated grammar, or one after a part to skip, without a text before it", ErrSpec)
	case s.SkipFrom != "" && strings.Contains(s.SkipFrom, s.After):
		return fmt.Errorf("%w: found %q in the beginning of the part to skip, %q", ErrSpec, s.After, s.SkipFrom)
	case s.SkipTo == "" && s.SkipFrom != "":
		return fmt.Errorf("%w: found the beginning of a part to skip without its end", ErrSpec)
	case s.Opening != "" && strings.Contains(s.Opening, s.After):
		return fmt.Errorf("%w: found %q in the beginning of the free part, %q", ErrSpec, s.After, s.Opening)
	case s.Param == "":
		return fmt.Errorf("%w: found no field of the request that has it", ErrSpec)
	}
	return nil
}

// ChoiceOf returns the source of a Choice.
func ChoiceOf(choices []string) string {
	source, err := json.Marshal(choices)
	if err != nil { // a list of strings has none
		return "[]"
	}
	return string(source)
}
