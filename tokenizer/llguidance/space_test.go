package llguidance

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/grammar"
)

// accepted returns how much of a text a spec's program takes, and whether the answer may end after all of it.
func accepted(t *testing.T, e *Engine, s *grammar.Spec, text string) (taken int, ends bool) {
	t.Helper()
	kind, source, err := s.Program()
	require.NoError(t, err)
	p, err := e.Compile(kind, source)
	require.NoError(t, err, source)
	a, err := p.Start()
	require.NoError(t, err)
	defer a.Close()
	for i := range len(text) {
		if ok, _, err := a.Advance(int32(text[i])); !ok || err != nil {
			return i, false
		}
	}
	mask := grammar.NewMask(258)
	require.NoError(t, a.Mask(mask))
	return len(text), mask.Allows(256)
}

// TestWhiteSpaceOfJSONIsBounded: no answer is white space up to its token limit, at any place of any form of JSON.
func TestWhiteSpaceOfJSONIsBounded(t *testing.T) {
	e := letters(t)
	schema := `{"type":"object","properties":{"a":{"type":"array","items":{"type":"integer","maximum":9,"minimum":0}}},"required":["a"],"additionalProperties":false}`
	for name, s := range map[string]*grammar.Spec{
		"schema": {Kind: grammar.JSONSchema, Source: schema}, "object": {Kind: grammar.JSONObject},
		"inside Lark": {Kind: grammar.Lark, Source: "start: %json " + schema},
		"pattern":     {Kind: grammar.JSONSchema, Source: schema, WhiteSpace: ` {0,3}|\n[ \t]{0,20}`},
	} {
		for _, text := range []string{`{"a":[1,2]}`, `{"a": [1, 2]}`, "{\n  \"a\": [\n    1,\n    2\n  ]\n}", "{\n\t\"a\": [1]}"} {
			n, ends := accepted(t, e, s, text)
			require.Empty(t, text[n:], name)
			require.True(t, ends, name)
			n, _ = accepted(t, e, s, text+strings.Repeat(" ", 40))
			require.Equal(t, len(text), n, "nothing follows")
			for i := range text {
				for _, space := range []string{strings.Repeat(" ", 40), strings.Repeat("\n", 40), strings.Repeat(" \n", 40),
					strings.Repeat("\t", 40), strings.Repeat("\r\n", 40)} {
					if i > 1 && strings.IndexByte("{}[]\",:123", text[i-1]) < 0 || text[max(i-1, 0)] == '"' && text[i] == 'a' {
						continue
					}
					n, _ := accepted(t, e, s, text[:i]+space)
					require.Less(t, n, i+40, "%s: %q and %q", name, text[:i], space)
				}
			}
		}
	}
	compact := &grammar.Spec{Kind: grammar.JSONSchema, Source: schema, Compact: true}
	_, ends := accepted(t, e, compact, `{"a":[1,2]}`)
	require.True(t, ends)
	for _, text := range []string{`{ `, `{"a" `, `{"a": `, `{"a":[1 `, `{"a":[1, `} {
		n, _ := accepted(t, e, compact, text)
		require.Equal(t, len(text)-1, n, text)
	}
}
