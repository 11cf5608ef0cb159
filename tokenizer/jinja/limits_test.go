package jinja_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/tokenizer/jinja"
)

// grow runs step over ns.x, which begins as start, up to 100,000 times the given number.
func grow(start, step string, rounds string) string {
	return "{% set ns = namespace(x=" + start + ") %}{% for k in range(" + rounds + ") %}" + step + "{% endfor %}"
}

func TestNoTemplateTakesMemoryWithoutBound(t *testing.T) {
	for name, source := range map[string]string{
		"text doubled by ~":      grow("'xx'", "{% set ns.x = ns.x ~ ns.x %}", "40"),
		"text doubled by +":      grow("'xx'", "{% set ns.x = ns.x + ns.x %}", "40"),
		"text doubled by set":    grow("'xx'", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}", "40"),
		"text doubled by macro":  "{% macro m(s) %}{{ s }}{{ s }}{% endmacro %}" + grow("'xx'", "{% set ns.x = m(ns.x) %}", "40"),
		"text doubled by filter": grow("'xx'", "{% set ns.x = [ns.x, ns.x]|join %}", "40"),
		"text kept in a list":    grow("[]", "{% set ns.x = ns.x + ['x' * (n // 900)] %}", "40000"),
		"repeat":                 "{{ ('x' * n)|length }}",
		"repeated constant":      "{{ ('x' * 90000000)|length }}",
		"join":                   "{{ range(100000)|join('x' * 100000) }}",
		"join method":            "{{ ('x' * 100000).join(['a'] * 100000) }}",
		"replace":                "{{ ('x' * 100000)|replace('x', 'y' * 100000) }}",
		"replace method":         "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
		"indent":                 "{{ ('x\n' * 100000)|indent(60000) }}",
		"pad":                    "{{ 'x'.ljust(1000000, 'y' * 1000000) }}",
		"split":                  "{{ ('x,' * 10000000).split(',') }}",
		"list of a text":         "{{ ('x' * 20000000)|list }}",
		"list of a sequence":     "{{ (range(100000)|list * 100000)|list }}",
		"tojson":                 "{{ ([[]] * 100000)|tojson(separators=['x' * 10000, ':']) }}",
		"lists doubled, shown":   grow("[1]", "{% set ns.x = [ns.x, ns.x] %}", "40") + "{{ ns.x ~ '' }}",
		"lists doubled, listed":  grow("[1]", "{% set ns.x = [ns.x, ns.x] %}", "40") + "{{ ns.x|string }}",
		"maps doubled":           grow("1", "{% set ns.x = {'a': ns.x, 'b': ns.x} %}", "40") + "{{ ns.x|tojson|length }}",
		"lists compared": grow("[1], y=[1]", "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}", "40") +
			"{{ ns.x == ns.y }}",
		"list as a key":       grow("[1]", "{% set ns.x = [ns.x, ns.x] %}", "40") + "{{ {ns.x: 1}|length }}",
		"work without growth": "{% set s = 'x' * (n // 90) %}{% for i in range(100000) %}{% set t = s ~ i %}{% endfor %}",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := render(source, `{"n":90000000}`, limits)
			require.ErrorIs(t, err, jinja.ErrLimit)
		})
	}
}

func TestNestedValuesDoNotOverflowTheStack(t *testing.T) {
	deep := limits
	deep.Steps = 100_000_000 // memory is to end it
	for name, step := range map[string]string{
		"list":    "[ns.x]",
		"map":     "{'a': ns.x}",
		"pair":    "[ns.x, 1]",
		"slice":   "ns.x[0:]",
		"reverse": "ns.x|reverse",
		"batch":   "[ns.x]|batch(1)",
		"items":   "{'a': ns.x}|items",
		"kwargs":  "dict(a=ns.x)",
		"zip":     "[ns.x]|zip([1])",
		"space":   "namespace(x=ns.x)",
	} {
		t.Run(name, func(t *testing.T) {
			build := grow("[1]", "{% for i in range(100000) %}{% set ns.x = "+step+" %}{% endfor %}", "20")
			for _, use := range []string{"", "{{ ns.x ~ '' }}"} {
				_, err := render(build+use, "{}", deep)
				require.Error(t, err, use)
			}
		})
	}
}

func TestAValueThatHoldsItselfIsAnError(t *testing.T) {
	for _, use := range []string{"{{ ns }}", "{{ ns ~ '' }}", "{{ ns|tojson }}", "{{ ns|string }}"} {
		_, err := render("{% set ns = namespace() %}{% set ns.x = ns %}"+use, "{}", limits)
		require.Error(t, err, use)
	}
}

func TestALimitSaysWhichOne(t *testing.T) {
	for source, want := range map[string]string{
		"{% for i in range(900) %}{% for j in range(900) %}{{ 1 + 1 }}{% endfor %}{% endfor %}": "more than 1048576 steps",
		"{% for i in range(90000) %}xxxxxxxxxxxxxxxx{% endfor %}":                               "more than 1048576 bytes",
		"{{ ('x' * (n // 2))|length }}":                                                         "more than 33554432 bytes of memory at once",
		"{% for i in range(90000) %}{% set t = 'x' * (n // 90) %}{% endfor %}":                  "more than 268435456 bytes in all",
	} {
		_, err := render(source, `{"n":90000000}`, limits)
		require.ErrorIs(t, err, jinja.ErrLimit)
		require.ErrorContains(t, err, want)
	}
}

func TestARenderAfterALimitIsWhole(t *testing.T) {
	tmpl,
		err := jinja.Compile("{% set ns = namespace(x=x) %}{% for i in range(n) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x|length }}")
	require.NoError(t, err)
	for range 20 {
		_, err = tmpl.Render([]byte(`{"x":"ab","n":40}`), now, limits)
		require.ErrorIs(t, err, jinja.ErrLimit)
		text, err := tmpl.Render([]byte(`{"x":"ab","n":20}`), now, limits)
		require.NoError(t, err)
		require.Equal(t, "2097152", text)
	}
}

func TestTheVariablesDoNotCountAsMemory(t *testing.T) {
	small := limits
	small.Memory = 1 << 20
	text, err := render("{{ x|length }}", `{"x":"`+strings.Repeat("x", 8<<20)+`"}`, small)
	require.NoError(t, err)
	require.Equal(t, "8388608", text)
}

// TestALongTagIsRewritten has many operators in one tag, each of which is rewritten with its operands.
func TestALongTagIsRewritten(t *testing.T) {
	text, err := render("{{ 'a'"+strings.Repeat(" ~ n", 100)+" }}", `{"n":[8]}`, limits)
	require.NoError(t, err)
	require.Equal(t, "a"+strings.Repeat("[8]", 100), text)
}
