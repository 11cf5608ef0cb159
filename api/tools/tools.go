// Package tools finds reasoning and tool calls in the text of an answer, and writes the grammars that
// keep a model to the format of its calls.
//
// A format is one small file: the markers by which a chat template shows the format, the steps that
// parse a call, and the grammar of a call. The package is pure. It must not know a wire format, a
// tokenizer or an engine.
package tools

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Kind is the kind of a Delta.
type Kind uint8

// The kinds of deltas.
const (
	Content   Kind = iota // text for the user
	Reasoning             // text of the model's reasoning
	Begin                 // of a call: has ID and Name
	Arguments             // a piece of the JSON text of a call's arguments
	End                   // of a complete call
)

// Delta is a part of a parsed answer.
type Delta struct {
	Kind Kind
	Text string // of Content, Reasoning and Arguments
	Call int    // number of the call, from 0; of Begin, Arguments and End
	ID   string // of Begin
	Name string // of Begin
}

// Tool is a function that a model may call.
type Tool struct {
	Name       string
	Parameters json.RawMessage // JSON schema of the arguments; nil: any object
	Strict     bool            // the arguments must match Parameters in every mode
}

// Format is how a model writes reasoning and calls. The zero value is plain text.
type Format struct {
	dialect *dialect
	thinks  bool
}

// dialect is the format of a model's calls, and of its reasoning.
type dialect struct {
	name    string
	special []string // markers that may be special tokens, which then belong to the text
	think   tags
	always  bool // reasoning is part of the calls' format
	// shows reports whether a chat template has calls in this format.
	shows func(template string) bool
	// start is the first step of an answer, after its reasoning.
	start step
	// nested is the step after think.again inside reasoning, for a format whose start finds reasoning anywhere. nil: reasoning is at the
	// beginning only.
	nested step
	// calls are the markers that begin a call. Where reasoning has no end marker, calls at the end of the answer are no reasoning.
	calls []string
	// interrupts says that a marker of calls surely begins calls, also inside reasoning: the model often leaves the end marker of its
	// reasoning out.
	interrupts bool
	// id returns the ID of a call that the text gives none. nil: callID.
	id func(answer string, choice, call int) string
	// grammar describes a call. nil: the format has no grammar.
	grammar func(g *lark, t *Tool) callRule
}

// tags are the markers around reasoning.
type tags struct {
	open, close string
	special     []string // those that may be special tokens
	again       string   // marker that a model may write again inside reasoning; "": none
}

func plainTags(open, end string) tags {
	return tags{open: open, close: end, special: []string{open, end}}
}

func thinkTags() tags { return plainTags("<think>", "</think>") }

// dialects returns all formats, those whose markers others contain first. They are shared: read only.
var dialects = sync.OnceValue(func() []*dialect {
	return []*dialect{
		harmony(), gemma(), functionGemma(), kimi(), deepseekV3(), deepseek(), mistral(), glm(), seedOSS(), qwenXML(), hermes(), pythonic(),
		llamaJSON(),
		{name: none, think: thinkTags(), shows: func(string) bool { return false }, start: contentOnly},
	}
})

const (
	none        = "none"   // no calls
	thinkSuffix = "+think" // after a name: with reasoning
)

// Names returns the names of the formats. Each may be followed by "+think".
func Names() []string {
	var names []string
	for _, d := range dialects() {
		names = append(names, d.name)
	}
	slices.Sort(names)
	return names
}

// Lookup returns the format that a Format's String names. "" is plain text.
func Lookup(name string) (Format, error) {
	if name == "" {
		return Format{}, nil
	}
	base, thinks := strings.CutSuffix(name, thinkSuffix)
	for _, d := range dialects() {
		if d.name == base {
			return Format{dialect: d, thinks: thinks || d.always}, nil
		}
	}
	return Format{}, fmt.Errorf("found %q, expected %s, each with or without %s", name, strings.Join(Names(), ", "), thinkSuffix)
}

// Detect returns the format that a chat template shows.
func Detect(template string) Format {
	for _, d := range dialects() {
		thinks := d.always || strings.Contains(template, d.think.close)
		if d.shows(template) || d.name == none && thinks {
			return Format{dialect: d, thinks: thinks}
		}
	}
	return Format{}
}

// Override returns the format that name selects for a model whose template shows f: f itself for "auto" and "".
// A name without "+think" keeps the reasoning that the template shows.
func (f Format) Override(name string) (Format, error) {
	if name == "auto" || name == "" {
		return f, nil
	}
	chosen, err := Lookup(name)
	if err == nil && chosen.dialect != nil {
		chosen.thinks = chosen.thinks || f.thinks
	}
	return chosen, err
}

// String returns the name of the format, which Lookup reads. It is "" for plain text.
func (f Format) String() string {
	switch {
	case f.dialect == nil, f.dialect.name == none && !f.thinks:
		return ""
	case f.thinks && !f.dialect.always:
		return f.dialect.name + thinkSuffix
	}
	return f.dialect.name
}

// Plain reports whether the text of an answer has nothing to parse.
func (f Format) Plain() bool { return f.String() == "" }

// Calls reports whether the format has calls.
func (f Format) Calls() bool { return f.dialect != nil && f.dialect.name != none }

// ForCalls returns the format of the calls that a request forces: f, or Hermes for a model whose own
// format is not known or has no grammar.
func (f Format) ForCalls() Format {
	if f.Calls() && f.dialect.grammar != nil {
		return f
	}
	return Format{dialect: hermes(), thinks: f.thinks}
}

// Thinks reports whether an answer may have reasoning.
func (f Format) Thinks() bool { return f.dialect != nil && f.thinks }

// ReasoningEnd returns the text between reasoning and the rest of an answer, "" for a format without reasoning.
func (f Format) ReasoningEnd() string {
	switch {
	case f.dialect == nil, !f.thinks:
		return ""
	case f.dialect.always:
		return harmonyChannel + "final" + harmonyMessage
	}
	return f.dialect.think.close
}

// ReasoningTags returns the texts around reasoning, without white space; "" for a format without them.
func (f Format) ReasoningTags() (begin, end string) {
	if f.dialect == nil || !f.thinks || f.dialect.always {
		return "", ""
	}
	return strings.TrimSpace(f.dialect.think.open), strings.TrimSpace(f.dialect.think.close)
}

// Skip returns the texts around reasoning at the beginning of an answer, in which no call begins; "" for a format that marks calls
// so that none begins there, and for one whose calls may.
func (f Format) Skip() (from, to string) {
	if f.dialect == nil || !f.thinks || f.dialect.always || f.dialect.interrupts {
		return "", ""
	}
	return f.dialect.think.open, f.dialect.think.close
}

// ReasoningStart returns the text with which an answer begins that has reasoning, "" for a format without reasoning.
func (f Format) ReasoningStart() string {
	switch {
	case f.dialect == nil, !f.thinks:
		return ""
	case f.dialect.always:
		return harmonyChannel
	}
	return f.dialect.think.open
}

// Markers returns the texts that belong to an answer even where they are special tokens. calls says whether
// the answer may have calls.
func (f Format) Markers(calls bool) []string {
	if f.Plain() {
		return nil
	}
	var markers []string
	if calls || f.dialect.always {
		markers = append(markers, f.dialect.special...)
	}
	if f.thinks {
		markers = append(markers, f.dialect.think.special...)
	}
	return markers
}

// Thought is what the end of a prompt says of reasoning.
type Thought uint8

// The values of Thought.
const (
	Unsaid Thought = iota // the model decides
	Opened                // the prompt ends inside reasoning, which the answer continues
	Closed                // the prompt ends after reasoning, so that the answer has none
)

// ThoughtOf returns what the end of a prompt says of reasoning.
func ThoughtOf(prompt string) Thought {
	prompt = strings.TrimRight(prompt, whiteSpace)
	prompt = strings.TrimSuffix(prompt, seedBudget) // inside reasoning
	for _, d := range dialects() {
		switch {
		case d.always:
		case strings.HasSuffix(prompt, strings.TrimSpace(d.think.open)):
			return Opened
		case strings.HasSuffix(prompt, d.think.close):
			return Closed
		}
	}
	return Unsaid
}

// BeginsInReasoning reports whether answers begin inside reasoning, although no prompt of a chat template says so. DeepSeek R1's first
// template takes reasoning out of earlier answers and never writes its start marker, which the model may leave out.
func BeginsInReasoning(template string) bool {
	return strings.Contains(template, deepseekCallBegin) && strings.Contains(template, thinkTags().close) &&
		!strings.Contains(template, thinkTags().open)
}

// Options are what a Parser needs to know of a request.
type Options struct {
	Format   Format
	Tools    []Tool // that may be called
	Single   bool   // at most one call; text of further ones is content
	Held     bool   // nothing guarantees a call: it comes out when it is complete and valid
	Thinking bool   // the answer begins inside reasoning
	ID       string // of the answer
	Choice   int    // number of the choice
}

// tool returns the tool with a name, or nil.
func (o *Options) tool(name string) *Tool {
	i := slices.IndexFunc(o.Tools, func(t Tool) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return &o.Tools[i]
}

// properties returns the schemas of a tool's parameters by name.
func (t *Tool) properties() map[string]json.RawMessage {
	var schema struct {
		Properties  map[string]json.RawMessage `json:"properties"`
		Defs        map[string]json.RawMessage `json:"$defs"`
		Definitions map[string]json.RawMessage `json:"definitions"`
	}
	if t == nil || json.Unmarshal(t.Parameters, &schema) != nil {
		return nil
	}
	for name, p := range schema.Properties {
		schema.Properties[name] = resolve(p, schema.Defs, schema.Definitions)
	}
	return schema.Properties
}

// resolve returns the definition that a schema refers to, or the schema.
func resolve(schema json.RawMessage, defs, definitions map[string]json.RawMessage) json.RawMessage {
	const most = 8 // references in a row
	for range most {
		var s struct {
			Ref string `json:"$ref"`
		}
		if json.Unmarshal(schema, &s) != nil || s.Ref == "" {
			return schema
		}
		next, ok := defs[strings.TrimPrefix(s.Ref, "#/$defs/")]
		if !ok {
			next, ok = definitions[strings.TrimPrefix(s.Ref, "#/definitions/")]
		}
		if !ok {
			return schema
		}
		schema = next
	}
	return schema
}

// schema returns the schema of the arguments as an object schema.
func (t *Tool) schema() json.RawMessage {
	if len(t.Parameters) == 0 {
		return json.RawMessage(`{"type":"object"}`)
	}
	return t.Parameters
}

// types returns the JSON types that a schema allows, "" for one that is not known.
func types(schema json.RawMessage) []string {
	var s struct {
		Type  json.RawMessage   `json:"type"`
		AnyOf []json.RawMessage `json:"anyOf"`
		OneOf []json.RawMessage `json:"oneOf"`
		Enum  []json.RawMessage `json:"enum"`
		Const json.RawMessage   `json:"const"`
	}
	if len(schema) == 0 || json.Unmarshal(schema, &s) != nil {
		return []string{""}
	}
	var one string
	var list []string
	switch {
	case json.Unmarshal(s.Type, &one) == nil && one != "":
		return []string{one}
	case json.Unmarshal(s.Type, &list) == nil && len(list) > 0:
		return list
	}
	for _, alternative := range append(s.AnyOf, s.OneOf...) {
		list = append(list, types(alternative)...)
	}
	if s.Const != nil {
		s.Enum = append(s.Enum, s.Const)
	}
	for _, v := range s.Enum {
		list = append(list, typeOf(v))
	}
	if len(list) == 0 {
		return []string{""}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// typeOf returns the JSON type of a value.
func typeOf(value json.RawMessage) string {
	switch cmp.Or(strings.TrimSpace(string(value)), "?")[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "number"
}
