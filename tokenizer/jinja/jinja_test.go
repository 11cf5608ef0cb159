package jinja_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/tokenizer/jinja"
)

var (
	now    = time.Date(2025, 2, 3, 4, 5, 6, 0, time.UTC) // the fixtures' clock
	limits = jinja.Limits{Steps: 1 << 20, Output: 1 << 20, Memory: 32 << 20, Allocated: 256 << 20}
)

func render(source, variables string, l jinja.Limits) (string, error) {
	tmpl, err := jinja.Compile(source)
	if err != nil {
		return "", err
	}
	return tmpl.Render([]byte(variables), now, l)
}

func TestExpressionsRenderAsInTransformers(t *testing.T) {
	var file struct {
		Variables json.RawMessage
		Cases     []struct {
			Template string
			Text     *string
			Raised   *string
			Error    *string
		}
	}
	data, err := os.ReadFile("../../testdata/templates/expressions.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &file))
	require.NotEmpty(t, file.Cases)
	for _, c := range file.Cases {
		t.Run(c.Template, func(t *testing.T) {
			text, err := render(c.Template, string(file.Variables), limits)
			var raised *jinja.RaisedError
			switch {
			case c.Text != nil:
				require.NoError(t, err)
				require.Equal(t, *c.Text, text)
			case c.Raised != nil:
				require.ErrorAs(t, err, &raised)
				require.Equal(t, *c.Raised, raised.Message)
			default:
				require.ErrorIs(t, err, jinja.ErrTemplate, "transformers: %s; here: %q", *c.Error, text)
			}
		})
	}
}

func TestRenderIsBounded(t *testing.T) {
	_, err := render("{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}", "{}", limits)
	require.ErrorIs(t, err, jinja.ErrLimit)
	_, err = render("{% for i in range(90000) %}{{ x }}{% endfor %}", `{"x":"`+strings.Repeat("x", 1000)+`"}`, limits)
	require.ErrorIs(t, err, jinja.ErrLimit)
	_, err = render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{}", limits)
	require.ErrorIs(t, err, jinja.ErrTemplate)
	_, err = render("{{ x }}", strings.Repeat(`{"x":`, 5000)+"1"+strings.Repeat("}", 5000), limits)
	require.ErrorIs(t, err, jinja.ErrTemplate)
}

func TestNothingOutsideTheTemplateCanBeIncluded(t *testing.T) {
	_, err := render("{% include '/etc/passwd' %}", "{}", limits)
	require.ErrorIs(t, err, jinja.ErrTemplate)
}

// TestWhatCannotBeTheSameIsNamed: two renders differ, or a user's text is changed. See docs/decisions/chat-templates.md.
func TestWhatCannotBeTheSameIsNamed(t *testing.T) {
	for source, name := range map[string]string{"{{ [1, 2] | random }}": "random", "{{ lipsum() }}": "lipsum",
		"{{ '<b>' | striptags }}": "striptags", "{{ 'a' | no_filter }}": "no_filter"} {
		_, err := render(source, "{}", limits)
		require.ErrorIs(t, err, jinja.ErrTemplate, source)
		require.ErrorContains(t, err, name)
	}
}

func TestMessagesAreDataNeverTemplate(t *testing.T) {
	text, err := render("{{ x }}", `{"x":"{{ raise_exception('a') }}{% if %}\u0000"}`, limits)
	require.NoError(t, err)
	require.Equal(t, "{{ raise_exception('a') }}{% if %}\x00", text)
}

func TestBadTemplateIsAnErrorWithItsLine(t *testing.T) {
	_, err := jinja.Compile("a\nb {% for %}")
	require.ErrorIs(t, err, jinja.ErrTemplate)
	require.Contains(t, err.Error(), "2")
	_, err = jinja.Compile("\xff")
	require.ErrorIs(t, err, jinja.ErrTemplate)
}

func TestManyGoroutinesShareATemplate(t *testing.T) {
	tmpl, err := jinja.Compile("{% for i in range(n) %}{{ i }},{% endfor %}{{ raise_exception('x') if n > 40 }}")
	require.NoError(t, err)
	var group sync.WaitGroup
	for n := range 50 {
		group.Go(func() {
			variables, _ := json.Marshal(map[string]int{"n": n})
			text, err := tmpl.Render(variables, now, limits)
			var raised *jinja.RaisedError
			if n > 40 != errors.As(err, &raised) || n <= 40 && strings.Count(text, ",") != n {
				t.Errorf("n=%d: %q, %v", n, text, err)
			}
		})
	}
	group.Wait()
}

// TestNumbersAreThoseOfPythonsJSON has numbers that no fixture can: JSON that Python writes has none of them.
func TestNumbersAreThoseOfPythonsJSON(t *testing.T) {
	for number, want := range map[string]string{
		"1e400": "inf|Infinity", "-1e400": "-inf|-Infinity", "1e-400": "0.0|0.0", "-0": "0|0", "-0.0": "-0.0|-0.0", "1E2": "100.0|100.0",
		"170141183460469231731687303715884105728": "170141183460469231731687303715884105728|170141183460469231731687303715884105728",
		"9007199254740993":                        "9007199254740993|9007199254740993", "1.0": "1.0|1.0",
	} {
		text, err := render("{{ n }}|{{ n | tojson }}", `{"n":`+number+`}`, limits)
		require.NoError(t, err, number)
		require.Equal(t, want, text, number)
	}
}

func TestVariablesThatAreNoJSONAreErrors(t *testing.T) {
	for _, variables := range []string{
		"", "{", `{"a"}`, `{"a":}`, `{"a":1`, `{"a":1}x`, `{"a":[1,]}`, `{"a":nul}`, `{"a":-}`, `{"a":1-2}`, `{"a":"b}`, `{"a":"\ud800"}`,
		`{"a":1e}`,
		strings.Repeat(`{"a":`, 300) + "1" + strings.Repeat("}", 300),
	} {
		_, err := render("{{ a }}", variables, limits)
		require.ErrorIs(t, err, jinja.ErrTemplate, "%.40s", variables)
		require.ErrorContains(t, err, "variables: ", "%.40s", variables)
	}
}

// TestSafeTextIsNotEscapedInASum is a difference from transformers, on purpose: see docs/decisions/chat-templates.md.
func TestSafeTextIsNotEscapedInASum(t *testing.T) {
	text, err := render(`{{ '{"a":' | safe + n | tojson + '"}' }}|{{ ('<' | safe) ~ '"' }}`, `{"n":"<"}`, limits)
	require.NoError(t, err)
	require.Equal(t, `{"a":"<""}|<"`, text)
}
