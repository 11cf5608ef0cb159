package tools

import "testing"

func TestHermesCases(t *testing.T) {
	const call = `{"name": "get_weather", "arguments": {"city": "Paris"}}`
	checkCases(t, "hermes", []parseCase{
		{name: "one call", text: "<tool_call>\n" + call + "\n</tool_call>", want: answer{calls: paris}},
		{name: "text before it", text: "Let me see.\n\n<tool_call>\n" + call + "\n</tool_call>\n",
			want: answer{content: "Let me see.", calls: paris}},
		{name: "two calls", text: "<tool_call>\n" + call + "\n</tool_call>\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
			want: answer{calls: []made{paris[0], {"now", "{}"}}}},
		{name: "no parallel calls", single: true, text: "<tool_call>" + call + "</tool_call><tool_call>" + call + "</tool_call>",
			want: answer{calls: paris, content: "<tool_call>" + call + "</tool_call>"}},
		{name: "arguments first", text: `<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>`,
			want: answer{calls: paris}},
		{name: "no arguments", text: `<tool_call>{"name": "now"}</tool_call>`, want: answer{calls: []made{{"now", "{}"}}}},
		{name: "null arguments", repaired: true, text: `<tool_call>{"name": "now", "arguments": null}</tool_call>`,
			want: answer{calls: []made{{"now", "{}"}}}},
		{name: "arguments as a string", repaired: true,
			text: `<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}</tool_call>`, want: answer{calls: paris}},
		{name: "further fields", text: `<tool_call>{"id": 1, "type": "function", "name": "now", "arguments": {}}</tool_call>`,
			want: answer{calls: []made{{"now", "{}"}}}},
		{name: "no end marker", text: "<tool_call>" + call, want: answer{calls: paris}},
		{name: "cut in the end marker", text: "<tool_call>" + call + "\n</tool_c", want: answer{calls: paris}},
		{name: "text after it", text: "<tool_call>" + call + "</tool_call> Done.", want: answer{content: "Done.", calls: paris}},
		{name: "markers inside a string",
			text: `<tool_call>{"name": "get_weather", "arguments": {"city": "</tool_call>\" {<tool_call>"}}</tool_call>`,
			want: answer{calls: []made{{"get_weather", `{"city": "</tool_call>\" {<tool_call>"}`}}}},
		{name: "unicode", text: `<tool_call>{"name": "get_weather", "arguments": {"city": "東京 \u00e9"}}</tool_call>`,
			want: answer{calls: []made{{"get_weather", `{"city": "東京 \u00e9"}`}}}},
		{name: "an unknown name", text: ` <tool_call>{"name": "fly", "arguments": {}}</tool_call>`,
			want: answer{content: ` <tool_call>{"name": "fly", "arguments": {}}</tool_call>`}},
		{name: "no JSON", text: "<tool_call>get_weather</tool_call>", want: answer{content: "<tool_call>get_weather</tool_call>"}},
		{name: "arguments that are no object", text: `<tool_call>{"name": "now", "arguments": [1]}</tool_call>`,
			want: answer{content: `<tool_call>{"name": "now", "arguments": [1]}</tool_call>`}},
		{name: "arguments that are no JSON", text: `<tool_call>{"name": "now", "arguments": {a: 1}}</tool_call>!`,
			want: answer{content: `<tool_call>{"name": "now", "arguments": {a: 1}}</tool_call>!`}},
		{name: "cut in the name", text: `<tool_call>{"name": "get_wea`, want: answer{content: `<tool_call>{"name": "get_wea`}},
		{name: "cut in the arguments", text: "Yes:\n" + `<tool_call>{"name": "get_weather", "arguments": {"city": "Pa`,
			want: answer{content: "Yes:\n" + `<tool_call>{"name": "get_weather", "arguments": {"city": "Pa`}},
		{name: "cut in the marker", text: "Yes <tool_c", want: answer{content: "Yes <tool_c"}},
		{name: "a call after a bad one", text: "<tool_call>{\"name\": <tool_call>" + call + "</tool_call>",
			want: answer{content: `<tool_call>{"name":`, calls: paris}},
	})
}

func TestReasoningCases(t *testing.T) {
	const call = `<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>`
	checkCases(t, "hermes+think", []parseCase{
		{name: "reasoning and content", text: "<think>\nHm. So?\n</think>\n\nYes.\n",
			want: answer{reasoning: "Hm. So?", content: "Yes.\n"}},
		{name: "white space first", text: "\n<think>a</think>b", want: answer{reasoning: "a", content: "b"}},
		{name: "empty reasoning", text: "<think>\n\n</think>\n\nYes", want: answer{content: "Yes"}},
		{name: "no reasoning", text: " Yes <think>a</think>", want: answer{content: " Yes <think>a</think>"}},
		{name: "reasoning and a call", text: "<think>a</think>\n" + call, want: answer{reasoning: "a", calls: paris}},
		{name: "a call inside reasoning", text: "<think>a" + call + "</think>b", want: answer{reasoning: "a" + call, content: "b"}},
		{name: "cut", text: "<think>a < b </thi", want: answer{reasoning: "a < b </thi"}},
		{name: "cut after white space", text: "<think>a\n ", want: answer{reasoning: "a"}},
		{name: "the prompt opens it", thinking: true, text: "a\n\nb </think> c", want: answer{reasoning: "a\n\nb", content: "c"}},
		{name: "the prompt and the answer open it", thinking: true, text: "\n<think>\na</think>" + call,
			want: answer{reasoning: "a", calls: paris}},
		{name: "the prompt opens it, cut", thinking: true, text: "a", want: answer{reasoning: "a"}},
	})
	checkCases(t, "none+think", []parseCase{
		{name: "reasoning alone", text: "<think>a</think>" + call, want: answer{reasoning: "a", content: call}},
	})
	checkCases(t, "mistral+think", []parseCase{
		{name: "brackets", text: "[THINK]a[/THINK]b[TOOL_CALLS]now[ARGS]{}",
			want: answer{reasoning: "a", content: "b", calls: []made{{"now", "{}"}}}},
	})
	checkCases(t, "gemma+think", []parseCase{
		{name: "a channel", text: "<|channel>thought\na\n<channel|>b", want: answer{reasoning: "a", content: "b"}},
	})
}
