package tokenizer_test

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/tokenizer"
)

// callTools are tools whose arguments end after some tokens, whatever they are.
var callTools = []tools.Tool{
	{Name: "get_weather", Parameters: json.RawMessage(`{"type": "object", "additionalProperties": false, "required": ["city", "days"], "properties": {
		"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}, "unit": {"enum": ["celsius", "kelvin"]},
		"loud": {"type": "boolean"}, "when": {"type": "string", "format": "date"}, "tags": {"type": "array", "maxItems": 2, "items": {"type": "string", "maxLength": 3}}}}`)},
	{Name: "a.b-c_2", Parameters: json.RawMessage(`{"type": "object", "additionalProperties": false, "properties": {"x": {"$ref": "#/$defs/x"}, "y": {"const": null}},
		"$defs": {"x": {"type": "object", "additionalProperties": false, "required": ["k"], "properties": {"k": {"type": "boolean"}}}}}`)},
	{Name: "now", Parameters: json.RawMessage(`{"type": "object", "additionalProperties": false, "properties": {}}`)},
}

// markers are texts that stand for special tokens of the demo model in a test.
type markers map[string]int32

func (m markers) special(text string) (int32, bool) {
	id, ok := m[text]
	return id, ok
}

// text is that of a token.
func (m markers) text(e grammar.Engine, id int32) string {
	for text, special := range m {
		if special == id {
			return text
		}
	}
	return string(e.Bytes(id))
}

// walk draws tokens that a grammar allows until it ends.
func walk(t *testing.T, e grammar.Engine, p grammar.Program, m markers, rng *rand.Rand) string {
	t.Helper()
	a, err := p.Start()
	require.NoError(t, err)
	defer a.Close()
	mask := grammar.NewMask(e.Size())
	var text strings.Builder
	for range 2000 {
		require.NoError(t, a.Mask(mask))
		var allowed []int32
		end := false
		for id := range int32(e.Size()) {
			if mask.Allows(id) {
				if endsAnswer(e, id) {
					end = true
				} else {
					allowed = append(allowed, id)
				}
			}
		}
		if len(allowed) == 0 || end && rng.IntN(3) == 0 {
			return text.String()
		}
		id := allowed[rng.IntN(len(allowed))]
		ok, _, err := a.Advance(id)
		require.NoError(t, err)
		require.True(t, ok)
		text.WriteString(m.text(e, id))
	}
	t.Fatalf("no end after %q", text.String())
	return ""
}

func endsAnswer(e grammar.Engine, id int32) bool {
	return slices.Contains(e.Ends(), id)
}

// accepts reports whether a text is a value of a schema.
func accepts(t *testing.T, tok *tokenizer.Tokenizer, e grammar.Engine, schema json.RawMessage, text string) bool {
	t.Helper()
	p, err := e.Compile(grammar.JSONSchema, string(schema))
	require.NoError(t, err)
	a, err := p.Start()
	require.NoError(t, err)
	defer a.Close()
	ids, err := tok.Encode(text, false)
	require.NoError(t, err)
	for _, id := range ids {
		if ok, _, err := a.Advance(id); err != nil || !ok {
			return false
		}
	}
	mask := grammar.NewMask(e.Size())
	require.NoError(t, a.Mask(mask))
	return mask.Allows(e.Ends()[0])
}

// demo loads the demo model's vocabulary.
func demo(t *testing.T) (*tokenizer.Tokenizer, grammar.Engine) {
	t.Helper()
	tok, err := tokenizer.Load("../models/tiny-chat")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tok.Close()) })
	e, err := tok.Grammars()
	require.NoError(t, err)
	return tok, e
}

// requireCalls checks that a text is calls with valid arguments, and nothing else.
func requireCalls(t *testing.T, tok *tokenizer.Tokenizer, e grammar.Engine, o tools.Options, text string) {
	t.Helper()
	parser := tools.NewParser(o)
	names, arguments, rest := []string{}, []string{}, ""
	for _, d := range append(parser.Push(text), parser.Close()...) {
		switch d.Kind {
		case tools.Begin:
			names, arguments = append(names, d.Name), append(arguments, "")
		case tools.Arguments:
			arguments[d.Call] += d.Text
		case tools.Content:
			rest += d.Text
		case tools.Reasoning, tools.End:
		}
	}
	require.NotEmpty(t, names, text)
	require.Equal(t, len(names), parser.Calls(), text)
	require.Empty(t, strings.TrimSpace(rest), text)
	if o.Single {
		require.Len(t, names, 1, text)
	}
	for i := range names {
		for _, tool := range callTools {
			if tool.Name == names[i] {
				require.True(t, accepts(t, tok, e, tool.Parameters, arguments[i]), "%s(%s) in %q", names[i], arguments[i], text)
			}
		}
	}
}

// TestForcedCallsAreAlwaysValid draws random answers that a format's grammar allows: the parser of the format finds valid
// calls in them, and nothing else.
func TestForcedCallsAreAlwaysValid(t *testing.T) {
	tok, e := demo(t)
	for _, name := range tools.Names() {
		for _, suffix := range []string{"", "+think"} {
			f, err := tools.Lookup(name + suffix)
			require.NoError(t, err)
			f = f.ForCalls()
			t.Run(name+suffix, func(t *testing.T) {
				for seed := range 20 {
					rng := rand.New(rand.NewPCG(uint64(seed), 1))
					m := markers{}
					for i, text := range f.Markers(true) { // some of them are special tokens
						if ids := []string{"<|user|>", "<|system|>", "<|assistant|>"}; seed%4 > 1 && i < len(ids) {
							m[text], _ = tok.Special(ids[i])
						}
					}
					g, ok, err := f.Guide(callTools, tools.Demand{Required: true, Single: seed%2 == 0}, m.special)
					require.NoError(t, err)
					require.True(t, ok)
					g.Source = strings.Replace(g.Source, `TEXT: /(.|\n)*/`, `TEXT: /[a-z\n]{0,5}/`, 1) // reasoning has no bound
					p, err := e.Compile(grammar.Lark, g.Source)
					require.NoError(t, err, g.Source)
					requireCalls(t, tok, e, tools.Options{Format: f, Tools: callTools, ID: "1", Single: seed%2 == 0}, walk(t, e, p, m, rng))
				}
			})
		}
	}
}

// TestCallsAfterTheirMarkerAreAlwaysValid does the same for the calls that a model begins itself.
func TestCallsAfterTheirMarkerAreAlwaysValid(t *testing.T) {
	tok, e := demo(t)
	strict := slices.Clone(callTools)
	for i := range strict {
		strict[i].Strict = true
	}
	for _, name := range tools.Names() {
		f, err := tools.Lookup(name)
		require.NoError(t, err)
		g, ok, err := f.Guide(strict, tools.Demand{}, markers{}.special)
		require.NoError(t, err)
		if !ok {
			continue
		}
		t.Run(name, func(t *testing.T) {
			p, err := e.Compile(grammar.Lark, g.Source)
			require.NoError(t, err, g.Source)
			for seed := range 20 {
				text := g.After + walk(t, e, p, nil, rand.New(rand.NewPCG(uint64(seed), 1)))
				if g.Repeat {
					text += "\n" + text
				}
				requireCalls(t, tok, e, tools.Options{Format: f, Tools: strict, ID: "1"}, text)
			}
		})
	}
}
