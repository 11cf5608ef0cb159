package tools

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// parseCase is a text and what a parser makes of it.
type parseCase struct {
	name     string
	text     string
	thinking bool // the prompt ends inside reasoning
	single   bool
	repaired bool // arguments that only a held call repairs
	want     answer
}

// answer is the sum of the deltas of a text.
type answer struct {
	content, reasoning string
	calls              []made
	open               *made // a call without an end
}

// made is a call of an answer.
type made struct{ name, arguments string }

// weather and time are the tools of all cases.
var caseTools = []Tool{
	{Name: "get_weather", Parameters: json.RawMessage(`{"type": "object", "required": ["city"], "properties": {
		"city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"},
		"tags": {"type": "array", "items": {"type": "string"}}, "place": {"type": "object"}, "limit": {"type": ["number", "null"]}}}`)},
	{Name: "now"},
	{Name: "mcp.list-files_2", Parameters: json.RawMessage(`{"type": "object", "properties": {"path": {"type": "string"}}}`)},
}

// sum adds deltas up. It fails for deltas in an order that no client could use.
func sum(t testing.TB, deltas []Delta) (a answer) {
	t.Helper()
	begun := 0
	ids := map[string]bool{}
	var last made
	for _, d := range deltas {
		switch d.Kind {
		case Content:
			require.NotEmpty(t, d.Text)
			a.content += d.Text
		case Reasoning:
			require.NotEmpty(t, d.Text)
			a.reasoning += d.Text
		case Begin:
			require.Equal(t, begun, d.Call)
			require.NotEmpty(t, d.ID)
			require.False(t, ids[d.ID], "id %s of two calls", d.ID)
			ids[d.ID] = true
			begun++
			last = made{name: d.Name}
			a.open = &last
		case Arguments:
			require.Equal(t, begun-1, d.Call)
			require.NotNil(t, a.open, "arguments after the end of the call")
			a.open.arguments += d.Text
		case End:
			require.Equal(t, begun-1, d.Call)
			require.NotNil(t, a.open)
			a.calls, a.open = append(a.calls, *a.open), nil
		}
	}
	return a
}

// parse feeds pieces of a text to a new parser.
func parse(t testing.TB, o Options, pieces ...string) answer {
	t.Helper()
	p := NewParser(o)
	var deltas []Delta
	for _, piece := range pieces {
		deltas = append(deltas, p.Push(piece)...)
	}
	deltas = append(deltas, p.Close()...)
	a := sum(t, deltas)
	require.Equal(t, len(a.calls), p.Calls())
	return a
}

// checkCases parses each case whole, byte by byte and cut at every place, with calls held back and not.
func checkCases(t *testing.T, format string, cases []parseCase) {
	t.Helper()
	f, err := Lookup(format)
	require.NoError(t, err)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o := Options{Format: f, Tools: caseTools, Held: true, ID: "chatcmpl-1", Single: c.single, Thinking: c.thinking}
			require.Equal(t, c.want, parse(t, o, c.text), "whole")
			require.Equal(t, c.want, parse(t, o, strings.Split(c.text, "")...), "by characters")
			var bytes []string
			for i := range len(c.text) {
				bytes = append(bytes, c.text[i:i+1])
				require.Equal(t, c.want, parse(t, o, c.text[:i], c.text[i:]), "cut at %d", i)
			}
			require.Equal(t, c.want, parse(t, o, bytes...), "by bytes")

			o.Held = false
			whole := parse(t, o, c.text)
			require.Equal(t, whole, parse(t, o, bytes...), "by bytes, not held")
			for i := range len(c.text) {
				require.Equal(t, whole, parse(t, o, c.text[:i], c.text[i:]), "cut at %d, not held", i)
			}
			if len(c.want.calls) > 0 && !c.repaired {
				require.Equal(t, c.want.calls, whole.calls, "not held")
			}
		})
	}
}

// paris is the call of most cases.
var paris = []made{{"get_weather", `{"city": "Paris"}`}}

func TestCallsThatStreamComeOutBeforeTheirEnd(t *testing.T) {
	for format, text := range map[string]string{
		"hermes":      "<tool_call>\n" + `{"name": "get_weather", "arguments": {"city": "Par`,
		"qwen3-xml":   "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
		"glm":         "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Par",
		"llama3-json": `{"name": "get_weather", "parameters": {"city": "Par`,
		"mistral":     `[TOOL_CALLS]get_weather[ARGS]{"city": "Par`,
		"kimi":        `<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Par`,
		"deepseek":    `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Par`,
		"harmony":     `<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Par`,
	} {
		t.Run(format, func(t *testing.T) {
			f, err := Lookup(format)
			require.NoError(t, err)
			p := NewParser(Options{Format: f, Tools: caseTools, ID: "chatcmpl-1"})
			a := sum(t, p.Push(text))
			require.Equal(t, &made{"get_weather", `{"city": "Par`}, a.open, "before the rest of the text")
			require.Empty(t, a.content)
			require.Empty(t, sum(t, p.Close()).content, "the beginning of a call is no content")
			require.Zero(t, p.Calls(), "a call that was cut is not complete")

			held := NewParser(Options{Format: f, Tools: caseTools, ID: "chatcmpl-1", Held: true})
			require.Empty(t, held.Push(text), "a held call waits for its end")
			require.Equal(t, text, sum(t, held.Close()).content, "and is content without it")
		})
	}
}

func TestIDsDependOnTheAnswerAlone(t *testing.T) {
	f, err := Lookup("hermes")
	require.NoError(t, err)
	id := func(answer string, choice int) string {
		p := NewParser(Options{Format: f, Tools: caseTools, Held: true, ID: answer, Choice: choice})
		return p.Push(`<tool_call>{"name": "now"}</tool_call>`)[0].ID
	}
	first, again := id("chatcmpl-1", 0), id("chatcmpl-1", 0)
	require.Equal(t, first, again)
	require.NotEqual(t, first, id("chatcmpl-2", 0))
	require.NotEqual(t, first, id("chatcmpl-1", 1))
	require.Regexp(t, `^call_[0-9a-f]{24}$`, first)
}

func TestTextWithoutMarkersIsContentAsItIs(t *testing.T) {
	for _, name := range Names() {
		for _, suffix := range []string{"", thinkSuffix} {
			f, err := Lookup(name + suffix)
			require.NoError(t, err)
			for _, text := range []string{"", " ", "\n\nHello, \n world! \n", "a < b > c <t", "{", "[1, 2]", "x <", "日本語\n", "\x00",
				"<tool_cal"} {
				o := Options{Format: f, Tools: caseTools, Held: true, ID: "1"}
				require.Equal(t, answer{content: text}, parse(t, o, strings.Split(text, "")...), "%s%s %q", name, suffix, text)
			}
		}
	}
}

// visible is the text without white space.
func visible(s string) string { return strings.Join(strings.Fields(s), "") }

// FuzzParser checks that a parser gives the same deltas for any pieces of a text, that no text is lost, and
// that held calls are valid.
func FuzzParser(f *testing.F) {
	seeds := []string{"<think>a</think>b", "<tool_call>", `{"name":"now","arguments":{}}`, "</tool_call>", "<function=now>", "</function>",
		"<parameter=city>\nParis\n</parameter>", "[now()]", "[TOOL_CALLS]", "now[ARGS]{}",
		"<arg_key>city</arg_key><arg_value>x</arg_value>", "<|channel|>analysis<|message|>hm<|end|>",
		"<|channel|>commentary to=functions.now<|message|>{}<|call|>", "<|tool_call>call:now{}<tool_call|>",
		"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "<|channel>thought\nhm<channel|>",
		"<|channel>", "<think>a<tool_call>{\"name\": \"now\"}</tool_call>", "</think>", "<|python_tag|>", "[TOOL_CALLS]now[ARGS]{}",
		"<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"}
	names := Names()
	for i, s := range seeds {
		for format := range names {
			f.Add(uint8(format), uint64(i), s+seeds[(i+1)%len(seeds)])
		}
	}
	f.Fuzz(func(t *testing.T, format uint8, seed uint64, text string) {
		for _, suffix := range []string{"", thinkSuffix} {
			fm, err := Lookup(names[int(format)%len(names)] + suffix)
			require.NoError(t, err)
			for _, held := range []bool{true, false} {
				o := Options{Format: fm, Tools: caseTools, Held: held, ID: "1", Single: seed%3 == 0, Thinking: seed%2 == 0}
				whole := parse(t, o, text)
				require.Equal(t, whole, parse(t, o, pieces(seed, text)...), "%s held=%v", fm, held)
				if len(whole.calls) == 0 && held && suffix == "" && fm.String() != "harmony" {
					require.Equal(t, visible(text), visible(whole.reasoning+whole.content), fm)
				}
				for _, c := range whole.calls {
					require.NotNil(t, o.tool(c.name))
					if held {
						require.True(t, json.Valid([]byte(c.arguments)), "%s: %q", fm, c.arguments)
					}
				}
			}
		}
	})
}

// pieces cuts a text at random places, which may be inside a character.
func pieces(seed uint64, text string) (list []string) {
	r := rand.New(rand.NewPCG(seed, 1))
	for len(text) > 0 {
		n := 1 + r.IntN(min(len(text), 12))
		list, text = append(list, text[:n]), text[n:]
	}
	return list
}

// TestLongCallsTakeLinearTime would take minutes if the work grew with the square of the length.
func TestLongCallsTakeLinearTime(t *testing.T) {
	const size = 1 << 20
	long := strings.Repeat("abcdefgh ", size/9)
	for format, text := range map[string]string{
		"hermes":    `<tool_call>{"name": "get_weather", "arguments": {"city": "` + long + `"}}</tool_call>`,
		"qwen3-xml": "<tool_call>\n<function=get_weather>\n<parameter=city>\n" + long + "\n</parameter>\n</function>\n</tool_call>",
		"pythonic":  `[get_weather(city="` + long + `")]`,
		"gemma":     `<|tool_call>call:get_weather{city:<|"|>` + long + `<|"|>}<tool_call|>`,
		"harmony":   "<|channel|>analysis<|message|>" + long,
	} {
		f, err := Lookup(format)
		require.NoError(t, err)
		for _, held := range []bool{true, false} {
			p := NewParser(Options{Format: f, Tools: caseTools, Held: held, ID: "1"})
			for i := 0; i < len(text); i += 4 {
				p.Push(text[i:min(i+4, len(text))])
			}
			p.Close()
			if format != "harmony" {
				require.Equal(t, 1, p.Calls(), "%s held=%v", format, held)
			}
		}
	}
}

func ExampleParser() {
	f, _ := Lookup("hermes+think")
	p := NewParser(Options{Format: f, Tools: []Tool{{Name: "now"}}, Held: true, ID: "chatcmpl-1"})
	text := "<think>The user wants the time.</think><tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>"
	for _, d := range append(p.Push(text), p.Close()...) {
		fmt.Printf("%d %q %q\n", d.Kind, d.Name, d.Text)
	}
	// Output:
	// 1 "" "The user wants the time."
	// 2 "now" ""
	// 3 "" "{}"
	// 4 "" ""
}
