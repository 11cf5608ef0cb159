package tools

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/grammar"
)

// Special returns the id of a special token of a model's vocabulary. It returns false for a text that is no
// special token: the model spells it with other tokens.
type Special func(text string) (id int32, ok bool)

// Demand is what a request demands of the calls in an answer.
type Demand struct {
	Required bool // the answer is calls, at least one, and no other text
	Single   bool // at most one call
	// Or is the JSON schema of an answer in place of calls. nil: none. Not with Required.
	Or json.RawMessage
}

// Guide is the grammar of an answer with calls, in llguidance's Lark.
type Guide struct {
	Source string
	// After is the text after which the grammar begins. What is before it is free, and an answer without it is,
	// too. "": the grammar is that of the whole answer.
	After  string
	Repeat bool // the answer is free again where the grammar ends, up to the next After
}

// maxCalls bounds the calls that a grammar allows in one answer.
const maxCalls = 32

// callRule is the grammar of a call in one format.
type callRule struct {
	begin              []string // marker and text before the first call, or before each one
	listBegin, listEnd string   // around all calls that follow one begin
	gap                string   // between calls
	end                string   // marker after all calls. With it, or with listEnd, begin stands before the first call only
	single             bool     // the answer ends after one call
	body               string   // expression of a call, after begin
	// trigger is the last part of begin where text with it is surely the beginning of a call. "": no text is, so
	// that only forced calls have a grammar.
	trigger string
}

// Guide returns the grammar of an answer with calls of tools. It returns false where the format has none for
// the demand: then a parser has to hold calls back. An error is a *SchemaError.
func (f Format) Guide(tools []Tool, d Demand, special Special) (Guide, bool, error) {
	if !f.Calls() || f.dialect.grammar == nil || len(tools) == 0 {
		return Guide{}, false, nil
	}
	g := newLark(special, d)
	var r callRule
	names := make([]string, len(tools))
	for i := range tools {
		tool := tools[i]
		if g.forced || tool.Strict {
			var err error
			if tool, err = ruled(&tool); err != nil {
				return Guide{}, false, err
			}
		}
		g.of = fmt.Sprintf("parameters of tool %q", tool.Name)
		r = f.dialect.grammar(g, &tool)
		names[i] = fmt.Sprintf("call_%d", i)
		g.rule(names[i], r.body)
	}
	g.of = ""
	g.rule("call", strings.Join(names, " | "))
	begin := make([]string, len(r.begin))
	for i, s := range r.begin {
		begin[i] = g.mark(s)
	}
	together := r.end != "" || r.listEnd != ""
	next := g.join(append([]string{g.text(r.gap)}, begin...)...)
	if together {
		next = g.text(r.gap)
	}
	all := g.join(g.text(r.listBegin), "call", g.more(next, d.Single || r.single), g.text(r.listEnd), g.mark(r.end))
	forced := g.join(g.join(begin...), all)
	switch {
	case d.Or != nil && f.dialect.always:
		return Guide{}, false, nil // both begin in the same way
	case d.Or != nil:
		forced = fmt.Sprintf("((%s) | %s)", forced, g.json(d.Or, nil))
		fallthrough
	case d.Required:
		g.rule("start", g.join(f.beforeCalls(g), forced))
		return Guide{Source: g.String()}, true, nil
	case r.trigger == "":
		return Guide{}, false, nil
	case !together:
		all = "call"
	}
	g.rule("start", all)
	return Guide{Source: g.String(), After: r.trigger, Repeat: !together && !d.Single && !r.single}, true, nil
}

// more returns the expression of the calls after the first one.
func (g *lark) more(next string, single bool) string {
	if single {
		return ""
	}
	return fmt.Sprintf("(%s){0,%d}", g.join(next, "call"), maxCalls-1)
}

// beforeCalls returns the expression of what may stand before forced calls: reasoning that the prompt does not
// open, and empty lines.
func (f Format) beforeCalls(g *lark) string {
	switch {
	case f.dialect.always:
		return fmt.Sprintf("(%s)?", g.join(g.mark(harmonyChannel), g.text("analysis"), g.mark(harmonyMessage),
			g.until("TEXT", []string{harmonyEnd, harmonyStart, "assistant"})))
	case f.thinks:
		return fmt.Sprintf("(%s)? %s", g.join(g.opening(f.dialect.think), g.until("TEXT", []string{f.dialect.think.close})), `/\n{0,2}/`)
	}
	return ""
}

// opening returns the expression of the text that begins reasoning. It may begin with a special token.
func (g *lark) opening(t tags) string {
	for _, s := range t.special {
		if rest, ok := strings.CutPrefix(t.open, s); ok && g.special(s) {
			return g.join(g.mark(s), g.text(rest))
		}
	}
	return g.text(t.open)
}

// lark builds a grammar.
type lark struct {
	token  Special
	forced bool // arguments match the schema even if the tool is not strict
	rules  []string
	values int    // rules of values so far
	of     string // what the schemas in hand are of, for errors; "": the answer
}

func newLark(special Special, d Demand) *lark {
	if special == nil {
		special = func(string) (int32, bool) { return 0, false }
	}
	return &lark{token: special, forced: d.Required}
}

// String returns the grammar.
func (g *lark) String() string {
	return "%llguidance {}\n" + strings.Join(g.rules, "\n") + "\nTEXT: /(.|\\n)*/\n"
}

func (g *lark) rule(name, body string) { g.rules = append(g.rules, name+": "+body) }

// value adds a rule and returns its name.
func (g *lark) value(body string) string {
	name := g.reserve()
	g.rule(name, body)
	return name
}

// reserve returns the name of a rule that is not written yet.
func (g *lark) reserve() string {
	g.values++
	return fmt.Sprintf("value_%d", g.values)
}

// join returns the sequence of expressions.
func (g *lark) join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " ")
}

// text returns the expression of a text that is no special token, "" for none.
func (g *lark) text(s string) string {
	if s == "" {
		return ""
	}
	text, err := api.Marshal(s)
	if err != nil { // a string always has a JSON form
		return ""
	}
	return string(text)
}

// mark returns the expression of a marker, which may be a special token.
func (g *lark) mark(s string) string {
	if id, ok := g.token(s); ok {
		return fmt.Sprintf("<[%d]>", id)
	}
	return g.text(s)
}

func (g *lark) special(s string) bool {
	_, ok := g.token(s)
	return ok
}

// spacing makes JSON as models write it, and bounds the white space.
const spacing = `{"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "}`

// schema returns the expression of a tool's arguments as JSON.
func (g *lark) schema(t *Tool) string {
	if !g.forced && !t.Strict {
		return g.json(json.RawMessage(`{"type": "object"}`), nil)
	}
	return g.json(t.schema(), nil)
}

// json returns the expression of a JSON value with a schema. Definitions that it refers to are in root.
func (g *lark) json(schema, root json.RawMessage) string {
	var fields, definitions map[string]json.RawMessage
	if json.Unmarshal(schema, &fields) != nil || fields == nil { // none, or true
		fields = make(map[string]json.RawMessage)
	}
	if bytes.Contains(schema, []byte(`"$ref"`)) && json.Unmarshal(root, &definitions) == nil {
		for _, name := range []string{"$defs", "definitions"} {
			if d, ok := definitions[name]; ok {
				fields[name] = d
			}
		}
	}
	fields["x-guidance"] = json.RawMessage(spacing)
	text, err := json.Marshal(fields)
	if err != nil {
		return g.value("%json {}")
	}
	rule := "%json " + string(text)
	if g.of != "" {
		rule += grammar.Note + g.of
	}
	return g.value(rule)
}

// jsonOf returns the expression of the value of one parameter.
func (g *lark) jsonOf(m *property, t *Tool) string {
	of := g.of
	g.of = fmt.Sprintf("parameter %q of tool %q", m.name, t.Name)
	value := g.json(m.schema, t.Parameters)
	g.of = of
	return value
}

// property is a parameter of a tool.
type property struct {
	name     string
	schema   json.RawMessage
	required bool
}

// members returns the parameters of a tool, in the order of its schema. free means that they may be any: the schema
// need not be followed, or does not list them.
func (g *lark) members(t *Tool) (list []property, free bool) {
	var schema struct {
		Properties json.RawMessage `json:"properties"`
		Additional json.RawMessage `json:"additionalProperties"`
		Required   []string        `json:"required"`
	}
	if !g.forced && !t.Strict || json.Unmarshal(t.schema(), &schema) != nil {
		return nil, true
	}
	if schema.Properties == nil && len(schema.Required) == 0 && (schema.Additional == nil || string(schema.Additional) == "true") {
		return nil, true
	}
	schemas := t.properties()
	for _, name := range keys(schema.Properties) {
		if string(schemas[name]) != "false" { // no value suits it
			list = append(list, property{name, schemas[name], slices.Contains(schema.Required, name)})
		}
	}
	for _, name := range schema.Required {
		if _, listed := schemas[name]; !listed {
			list = append(list, property{name, nil, true})
		}
	}
	return list, false
}

// keys returns the keys of a JSON object in their order.
func keys(object json.RawMessage) (list []string) {
	dec := json.NewDecoder(bytes.NewReader(object))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return list
		}
		var skipped json.RawMessage
		if dec.Decode(&skipped) != nil {
			return list
		}
		if name, ok := key.(string); ok && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

// params returns the expression of arguments that each stand between two texts, in the order of the schema.
// around returns the parts of the text before and after the value of a key: markers and plain text in turn.
func (g *lark) params(t *Tool, around func(key string) (before, after []string)) string {
	members, free := g.members(t)
	if free {
		const anyKey = "\x00"
		before, after := around(anyKey)
		var parts []string
		for _, s := range before {
			parts = append(parts, g.keyed(s, anyKey))
		}
		return "(" + g.join(append(parts, g.until("TEXT", after))...) + fmt.Sprintf("){0,%d}", maxCalls)
	}
	var parts []string
	for _, m := range members {
		before, after := around(m.name)
		var texts []string
		for _, s := range before {
			texts = append(texts, g.mark(s))
		}
		one := g.join(append(texts, g.paramValue(&m, t, after))...)
		if !m.required {
			one = "(" + one + ")?"
		}
		parts = append(parts, one)
	}
	return g.join(parts...)
}

// keyed returns the expression of a text that may have any key at one place.
func (g *lark) keyed(s, anyKey string) string {
	before, after, found := strings.Cut(s, anyKey)
	if !found {
		return g.mark(s)
	}
	return g.join(g.text(before), "/[a-zA-Z0-9_.-]{1,64}/", g.text(after))
}

// until returns the expression of a text up to and with the parts of after, the first of which ends it.
func (g *lark) until(text string, after []string) string {
	rest := make([]string, len(after))
	for i, s := range after {
		rest[i] = g.mark(s)
	}
	if g.special(after[0]) {
		return g.join(append([]string{text}, rest...)...)
	}
	name := g.reserve()
	g.rules = append(g.rules, fmt.Sprintf("%s[lazy]: %s %s", name, text, rest[0]))
	return g.join(append([]string{name}, rest[1:]...)...)
}

// paramValue returns the expression of a value and of the text after it. A string stands without quotes.
func (g *lark) paramValue(m *property, t *Tool, after []string) string {
	allowed := types(m.schema)
	texts := make([]string, len(after))
	for i, s := range after {
		texts[i] = g.mark(s)
	}
	if !slices.Contains(allowed, "string") {
		return g.join(append([]string{g.jsonOf(m, t)}, texts...)...)
	}
	if choices := listed(m.schema); choices != nil {
		for i, c := range choices {
			choices[i] = g.text(c)
		}
		return g.join(append([]string{"(" + strings.Join(choices, " | ") + ")"}, texts...)...)
	}
	return g.until(g.textOf(m.schema), after)
}

// listed returns the texts of the values that a schema lists, nil if it does not list them.
func listed(schema json.RawMessage) (texts []string) {
	var s struct {
		Enum  []json.RawMessage `json:"enum"`
		Const json.RawMessage   `json:"const"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return nil
	}
	if s.Const != nil {
		s.Enum = []json.RawMessage{s.Const}
	}
	for _, v := range s.Enum {
		text := string(v)
		_ = json.Unmarshal(v, &text) // a string stands without quotes
		texts = append(texts, text)
	}
	return texts
}

// textOf returns the terminal of the strings that a schema allows, as far as a pattern for the whole text or their length bounds them.
func (g *lark) textOf(schema json.RawMessage) string {
	var s struct {
		Min     int    `json:"minLength"`
		Max     *int   `json:"maxLength"`
		Pattern string `json:"pattern"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return "TEXT"
	}
	if whole := wholeText(s.Pattern); whole != "" {
		return "/" + whole + "/"
	}
	if s.Min <= 0 && s.Max == nil {
		return "TEXT"
	}
	most := ""
	if s.Max != nil {
		most = fmt.Sprint(*s.Max)
	}
	return fmt.Sprintf(`/(.|\n){%d,%s}/`, max(s.Min, 0), most)
}

// keywords returns the expression of a tool's arguments as Python's keyword arguments, in the order of the
// schema. Values are JSON, but for True and False.
func (g *lark) keywords(t *Tool) string {
	members, free := g.members(t)
	if free {
		one := g.value(`/[a-zA-Z_][a-zA-Z0-9_]{0,63}/ "=" ` + g.json(json.RawMessage("{}"), nil))
		return fmt.Sprintf(`(%s (", " %s){0,%d})?`, one, one, maxCalls)
	}
	return g.separated(members, `", "`, func(m *property) string {
		value := `("True" | "False")`
		if !slices.Equal(types(m.schema), []string{"boolean"}) {
			value = g.jsonOf(m, t)
		}
		return g.join(g.text(m.name+"="), value)
	})
}

// separated returns the expression of members in their order, with a separator between those that are there. one returns the
// expression of a member.
func (g *lark) separated(members []property, separator string, one func(m *property) string) string {
	rest, first := "", ""
	for i := range slices.Backward(members) {
		m := &members[i]
		one := one(m)
		alone := g.join(one, rest)
		if m.required {
			first, rest = alone, g.join(separator, one, rest)
			continue
		}
		if first == "" {
			first = fmt.Sprintf("(%s)?", alone)
		} else {
			first = fmt.Sprintf("(%s | %s)", alone, first)
		}
		rest = g.join(fmt.Sprintf("(%s %s)?", separator, one), rest)
	}
	return first
}
