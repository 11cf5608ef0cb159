package tools

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// callsOf are a call and its text in each format whose calls have a marker.
var callsOf = map[string]string{
	"hermes":        `<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>`,
	"qwen3-xml":     "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
	"seed-oss":      "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>",
	"glm":           "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
	"mistral":       `[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}`,
	"deepseek":      deepseekBegin + deepseekCallBegin + "get_weather" + deepseekSeparator + `{"city": "Paris"}` + deepseekCallEnd + deepseekEnd,
	"gemma":         `<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>`,
	"functiongemma": "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>",
	"kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>" +
		`{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>`,
	"pythonic":    `<|python_start|>[get_weather(city="Paris")]<|python_end|>`,
	"llama3-json": `<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}`,
}

func TestTextAroundCallsKeepsItsWordsApart(t *testing.T) {
	for format, call := range callsOf {
		checkCases(t, format, []parseCase{
			{name: format + ": spaces", text: "One " + call + " two", want: answer{content: "One two", calls: paris}},
			{name: format + ": a space after", text: "One" + call + " two", want: answer{content: "One two", calls: paris}},
			{name: format + ": lines", text: "One\n\n" + call + "\ntwo\n", want: answer{content: "One\n\ntwo\n", calls: paris}},
			{name: format + ": nothing", text: "One" + call + "two", want: answer{content: "One\ntwo", calls: paris}},
			{name: format + ": two calls", text: "One " + call + "\n" + call + " two",
				want: answer{content: "One two", calls: []made{paris[0], paris[0]}}},
			{name: format + ": no text before", text: " " + call + " two", want: answer{content: "two", calls: paris}},
		})
	}
}

func TestCallsInReasoningWithoutAnEnd(t *testing.T) {
	for format, call := range callsOf {
		f, err := Lookup(format + thinkSuffix)
		require.NoError(t, err)
		open, end := f.dialect.think.open, f.dialect.think.close
		cases := []parseCase{
			{name: format + ": at the end of the answer", text: open + "Hm. " + call + "\n", want: answer{reasoning: "Hm.", calls: paris}},
			{name: format + ": two", text: open + "Hm." + call + call, want: answer{reasoning: "Hm.", calls: []made{paris[0], paris[0]}}},
			{name: format + ": the prompt opens it", thinking: true, text: "Hm.\n" + call, want: answer{reasoning: "Hm.", calls: paris}},
			{name: format + ": nothing before", thinking: true, text: call, want: answer{calls: paris}},
		}
		if !f.dialect.interrupts {
			mark := f.dialect.calls[0]
			cases = append(cases,
				parseCase{name: format + ": an end follows", text: open + "Hm. " + call + " No." + end + "Yes.",
					want: answer{reasoning: "Hm. " + call + " No.", content: "Yes."}},
				parseCase{name: format + ": an end follows at once", text: open + "Hm. " + call + end,
					want: answer{reasoning: "Hm. " + call}},
				parseCase{name: format + ": text follows", text: open + "Hm. " + call + " No.",
					want: answer{reasoning: "Hm. " + call + " No."}},
				parseCase{name: format + ": the marker in a text first", text: open + "I write " + mark + " first. " + call,
					want: answer{reasoning: "I write " + mark + " first.", calls: paris}},
				parseCase{name: format + ": cut", text: open + "Hm. " + call[:len(call)-len(call)/2],
					want: answer{reasoning: "Hm. " + call[:len(call)-len(call)/2]}},
			)
		}
		checkCases(t, format+thinkSuffix, cases)
	}
}

func TestReasoningWithoutTools(t *testing.T) {
	for format, call := range callsOf {
		f, err := Lookup(format + thinkSuffix)
		require.NoError(t, err)
		for _, pieces := range [][]string{{call}, strings.Split(call, "")} {
			require.Equal(t, answer{reasoning: call}, parse(t, Options{Format: f, Held: true, Thinking: true, ID: "1"}, pieces...), format)
		}
	}
}

func TestKimiCallsInReasoning(t *testing.T) {
	call := callsOf["kimi"]
	checkCases(t, "kimi+think", []parseCase{
		{name: "an end follows", text: "<think>Hm. " + call + " So.</think>Yes.",
			want: answer{reasoning: "Hm. So.", content: "Yes.", calls: paris}},
		{name: "text follows", text: "<think>Hm. " + call + " Yes.", want: answer{reasoning: "Hm.", content: "Yes.", calls: paris}},
		{name: "a call, text and a call", text: "<think>Hm. " + call + " And " + call,
			want: answer{reasoning: "Hm.", content: "And", calls: []made{paris[0], paris[0]}}},
		{name: "without the section", thinking: true, text: "Hm." + strings.TrimSuffix(strings.TrimPrefix(call,
			"<|tool_calls_section_begin|>"), "<|tool_calls_section_end|>"),
			want: answer{reasoning: "Hm.", calls: paris}},
		{name: "an unknown name", text: "<think>Hm. " + strings.Replace(call, "get_weather", "fly", 1),
			want: answer{reasoning: "Hm.", content: strings.Replace(call, "get_weather", "fly", 1)}},
	})
	f, err := Lookup("kimi+think")
	require.NoError(t, err)
	from, to := f.Skip()
	require.Empty(t, from+to, "the grammar of a call begins inside reasoning, too")
	p := NewParser(Options{Format: f, Tools: caseTools, ID: "1"})
	require.NotNil(t, sum(t, p.Push("<think>Hm. "+call[:len(call)-60])).open, "a call inside reasoning streams")
}

func TestReasoningMarkersThatStrayDoNotLeak(t *testing.T) {
	for _, format := range Names() {
		f, err := Lookup(format + thinkSuffix)
		require.NoError(t, err)
		if f.dialect.always || f.dialect.nested != nil {
			continue
		}
		open, end := f.dialect.think.open, f.dialect.think.close
		checkCases(t, format+thinkSuffix, []parseCase{
			{name: format + ": an end without a start", text: "Hm.\n" + end + "\n\nYes.", want: answer{content: "Hm.\nYes."}},
			{name: format + ": an end between words", text: "Hm." + end + "Yes.", want: answer{content: "Hm.\nYes."}},
			{name: format + ": an end first", text: end + "\nYes.", want: answer{content: "Yes."}},
			{name: format + ": an end last", text: "Yes." + end, want: answer{content: "Yes."}},
			{name: format + ": two ends", text: open + "Hm." + end + "\n" + end + "Yes.", want: answer{reasoning: "Hm.", content: "Yes."}},
			{name: format + ": two starts", text: open + "\n" + open + "Hm." + end + "Yes.",
				want: answer{reasoning: "Hm.", content: "Yes."}},
			{name: format + ": two starts after the prompt's", thinking: true, text: open + open + "Hm." + end + "Yes.",
				want: answer{reasoning: "Hm.", content: "Yes."}},
			{name: format + ": markers in the content", text: "Write " + open + "a" + end + ".",
				want: answer{content: "Write " + open + "a" + end + "."}},
			{name: format + ": an end in the content after reasoning", text: open + "a" + end + "Write " + end + ".",
				want: answer{reasoning: "a", content: "Write " + end + "."}},
		})
	}
}

func TestGemmaChannelsDoNotLeak(t *testing.T) {
	const open, end = "<|channel>", "<channel|>"
	call := callsOf["gemma"]
	checkCases(t, "gemma+think", []parseCase{
		{name: "a line", text: open + "thought\nHm.\n" + end + "Yes.", want: answer{reasoning: "Hm.", content: "Yes."}},
		{name: "no line", text: open + "thought" + end + "Yes.", want: answer{content: "Yes."}},
		{name: "no line, and reasoning", text: open + "thought Hm." + end + "Yes.", want: answer{reasoning: "Hm.", content: "Yes."}},
		{name: "an end without a start", text: "Yes" + end + ", no.", want: answer{content: "Yes\n, no."}},
		{name: "an end first", text: end + "Yes.", want: answer{content: "Yes."}},
		{name: "two ends", text: open + "thought\nHm." + end + end + "Yes.", want: answer{reasoning: "Hm.", content: "Yes."}},
		{name: "an empty channel after the content", text: "Yes.\n" + open + "thought\n" + end, want: answer{content: "Yes."}},
		{name: "an empty channel amid the content", text: "Yes. " + open + "thought\n" + end + "No.", want: answer{content: "Yes. No."}},
		{name: "reasoning amid the content", text: "Yes. " + open + "thought\nHm." + end + " No.",
			want: answer{content: "Yes. No.", reasoning: "Hm."}},
		{name: "two starts", text: open + open + "thought\nHm." + end + "Yes.", want: answer{reasoning: "Hm.", content: "Yes."}},
		{name: "two starts with a name", text: open + "thought\n" + open + "thought\nHm." + end + "Yes.",
			want: answer{reasoning: "Hm.", content: "Yes."}},
		{name: "a start inside reasoning", text: open + "thought\nHm. " + open + "So." + end + "Yes.",
			want: answer{reasoning: "Hm. So.", content: "Yes."}},
		{name: "a start alone", text: open + "Yes.", want: answer{content: "Yes."}},
		{name: "a start last", text: "Yes." + open, want: answer{content: "Yes."}},
		{name: "a word that begins as the name", text: open + "thoughtful", want: answer{content: "thoughtful"}},
		{name: "cut in the name", text: open + "thou", want: answer{content: "thou"}},
		{name: "the prompt opens it", thinking: true, text: "\nthoughts" + end + "Yes.",
			want: answer{reasoning: "thoughts", content: "Yes."}},
		{name: "the prompt and the answer open it", thinking: true, text: open + "thought\nHm." + end + "Yes.",
			want: answer{reasoning: "Hm.", content: "Yes."}},
		{name: "reasoning, a call and reasoning", text: open + "thought\nHm." + end + call + open + "thought\nSo." + end + "Yes.",
			want: answer{reasoning: "Hm.\nSo.", content: "Yes.", calls: paris}},
	})
}

func TestTemplatesOfOtherFormatsAreNotKnown(t *testing.T) {
	for name, template := range map[string]string{
		"a list in tags":        "a list of json objects within <tool_call></tool_call> XML tags, as follows:\n<tool_calls>[{\"name\": <name>, \"arguments\": <dict>}]</tool_calls>",
		"invoke, with a prefix": `{{ '<tool_call>\n' }}{{ ns ~ '<invoke name="' ~ call.name ~ '">' }}{{ call.arguments | tojson }}{{ '</invoke>' }}`,
		"a namespace":           "<x:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function></x:tool_call>",
		"a function tag":        `<|python_tag|> <function=f>{"a": 1}</function> {{ tool | tojson }}`,
		"fields in tags":        "<tool_call><name>{{ call.name }}</name><args>{{ call.arguments | tojson }}</args></tool_call>",
		"a tag for code":        "{{ '<|python_tag|>' + code }}",
		"upper case":            `<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>`,
	} {
		require.Empty(t, Detect(template).String(), name)
		require.Equal(t, "none+think", Detect(template+" </think>").String(), name)
	}
}
