package tools

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQwenXMLCases(t *testing.T) {
	const call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
	checkCases(t, "qwen3-xml", []parseCase{
		{name: "one call", text: call, want: answer{calls: paris}},
		{name: "text before it", text: "Let me see.\n\n" + call, want: answer{content: "Let me see.", calls: paris}},
		{name: "two calls", text: call + "\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
			want: answer{calls: []made{paris[0], {"now", "{}"}}}},
		{name: "without the outer markers", text: "<function=now></function>", want: answer{calls: []made{{"now", "{}"}}}},
		{name: "types",
			text: "<function=get_weather><parameter=city>\n3\n</parameter>\n<parameter=days>3</parameter><parameter=metric>\nTrue\n</parameter>" +
				"<parameter=tags>\n[\"a\", 'b']\n</parameter><parameter=limit>null</parameter><parameter=place>{\"x\": 1}</parameter></function>",
			want: answer{calls: []made{{"get_weather",
				`{"city": "3", "days": 3, "metric": true, "tags": ["a", "b"], "limit": null, "place": {"x": 1}}`}}}},
		{name: "values of another type",
			text: "<function=get_weather><parameter=days>three</parameter><parameter=metric>1</parameter></function>",
			want: answer{calls: []made{{"get_weather", `{"days": "three", "metric": "1"}`}}}},
		{name: "an unknown parameter", text: "<function=now><parameter=zone>CET</parameter><parameter=n>3</parameter></function>",
			want: answer{calls: []made{{"now", `{"zone": "CET", "n": 3}`}}}},
		{name: "newlines and quotes", text: "<function=get_weather>\n<parameter=city>\n\na \"b\"\n</par\n\n</parameter>\n</function>",
			want: answer{calls: []made{{"get_weather", `{"city": "\na \"b\"\n</par\n"}`}}}},
		{name: "an unknown name", text: "<tool_call>\n<function=fly>\n</function>",
			want: answer{content: "<tool_call>\n<function=fly>\n</function>"}},
		{name: "cut", text: "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
			want: answer{content: "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar"}},
		{name: "text between parameters", text: "<function=now>so</function>", want: answer{content: "<function=now>so</function>"}},
	})
}

func TestGLMCases(t *testing.T) {
	const call = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>"
	checkCases(t, "glm", []parseCase{
		{name: "one call", text: "\n" + call, want: answer{calls: paris}},
		{name: "on one line", text: "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
			want: answer{calls: paris}},
		{name: "no arguments", text: "<tool_call>now</tool_call>\n" + call, want: answer{calls: []made{{"now", "{}"}, paris[0]}}},
		{name: "types",
			text: "<tool_call>get_weather\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>city</arg_key>\n<arg_value> 3\n</arg_value>\n</tool_call>",
			want: answer{calls: []made{{"get_weather", `{"days": 3, "city": " 3\n"}`}}}},
		{name: "an unknown name", text: "<tool_call>fly\n</tool_call>", want: answer{content: "<tool_call>fly\n</tool_call>"}},
		{name: "cut", text: "a <tool_call>now\n<arg_key>ci", want: answer{content: "a <tool_call>now\n<arg_key>ci"}},
	})
}

func TestLlamaJSONCases(t *testing.T) {
	const call = `{"name": "get_weather", "parameters": {"city": "Paris"}}`
	checkCases(t, "llama3-json", []parseCase{
		{name: "one call", text: call, want: answer{calls: paris}},
		{name: "with the tag", text: " <|python_tag|> " + call, want: answer{calls: paris}},
		{name: "several", text: call + "; " + `{"name": "now", "parameters": {}}`, want: answer{calls: []made{paris[0], {"now", "{}"}}}},
		{name: "on lines", text: call + "\n" + `{"name": "now", "arguments": {}}` + "\n",
			want: answer{calls: []made{paris[0], {"now", "{}"}}}},
		{name: "a type first", text: `{"type": "function", "name": "now", "parameters": {}}`, want: answer{calls: []made{{"now", "{}"}}}},
		{name: "JSON that is no call", text: `{"name": "Bob", "age": 3}`, want: answer{content: `{"name": "Bob", "age": 3}`}},
		{name: "a call inside text", text: "Like this: " + call, want: answer{content: "Like this: " + call}},
		{name: "text after it", text: call + "; so", want: answer{content: "; so", calls: paris}},
		{name: "text and the tag first", text: "Let me see. <|python_tag|>" + call + "\nDone.",
			want: answer{content: "Let me see. Done.", calls: paris}},
		{name: "a list", text: "[" + call + `, {"name": "now", "parameters": {}}]`, want: answer{calls: []made{paris[0], {"now", "{}"}}}},
		{name: "a list after the tag", text: "So: <|python_tag|>[" + call + "]", want: answer{content: "So:", calls: paris}},
		{name: "a list that is no call", text: ` [1, {"name": "now"}]`, want: answer{content: ` [1, {"name": "now"}]`}},
		{name: "a built-in tool", text: `<|python_tag|>brave_search.call(query="x")`,
			want: answer{content: `<|python_tag|>brave_search.call(query="x")`}},
		{name: "cut", text: `{"name": "get_weather", "parameters": {"ci`,
			want: answer{content: `{"name": "get_weather", "parameters": {"ci`}},
	})
}

func TestPythonicCases(t *testing.T) {
	checkCases(t, "pythonic", []parseCase{
		{name: "one call", text: `[get_weather(city="Paris")]`, want: answer{calls: paris}},
		{name: "with markers", text: `<|python_start|>[get_weather(city='Paris')]<|python_end|>`, want: answer{calls: paris}},
		{name: "two calls", text: "[get_weather(city=\"Paris\"), now()]\n", want: answer{calls: []made{paris[0], {"now", "{}"}}}},
		{name: "literals",
			text: `[get_weather(city='a, "b")', days=-3, metric=True, limit=None, tags=["x", 'y]',], place={'a': {"b": (1, 2.5e3)}})]`,
			want: answer{calls: []made{{"get_weather",
				`{"city": "a, \"b\")", "days": -3, "metric": true, "limit": null, "tags": ["x", "y]"], "place": {"a": {"b": [1, 2.5e3]}}}`}}}},
		{name: "escapes", text: `[get_weather(city="a\n\"\u00e9\'\q")]`,
			want: answer{calls: []made{{"get_weather", `{"city": "a\n\"\u00e9'\\q"}`}}}},
		{name: "a list that is no call", text: "[1, 2]", want: answer{content: "[1, 2]"}},
		{name: "an unknown name", text: "[fly(to=1)]", want: answer{content: "[fly(to=1)]"}},
		{name: "positional arguments", text: `[get_weather("Paris")]`, want: answer{content: `[get_weather("Paris")]`}},
		{name: "an expression", text: `[get_weather(days=1+x)]`, want: answer{content: `[get_weather(days=1+x)]`}},
		{name: "cut in the second call", text: `[now(), get_weather(city="Pa`,
			want: answer{calls: []made{{"now", "{}"}}, content: `, get_weather(city="Pa`}},
		{name: "text first", text: "See [now()]", want: answer{content: "See", calls: []made{{"now", "{}"}}}},
		{name: "text and a marker first", text: "Let me see.\n<|python_start|>[get_weather(city='Paris')]<|python_end|>\nDone.",
			want: answer{content: "Let me see.\nDone.", calls: paris}},
		{name: "text in brackets", text: "[1] says [so](http://now) and [now", want: answer{content: "[1] says [so](http://now) and [now"}},
		{name: "a marker without calls", text: "a <|python_start|>x = 1<|python_end|>",
			want: answer{content: "a <|python_start|>x = 1<|python_end|>"}},
		{name: "escapes by number", text: `[get_weather(city='\x41\101\U0001F600\a\ud83d\0')]`,
			want: answer{calls: []made{{"get_weather", `{"city": "AA😀\u0007\ud83d\u0000"}`}}}},
		{name: "a short escape", text: `[get_weather(city='\x4')]`, want: answer{content: `[get_weather(city='\x4')]`}},
	})
}

func TestMistralCases(t *testing.T) {
	checkCases(t, "mistral", []parseCase{
		{name: "a list", text: `[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]`, want: answer{calls: paris}},
		{name: "a list of two",
			text: `Yes. [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"arguments": {}, "name": "now"}]`,
			want: answer{content: "Yes.", calls: []made{paris[0], {"now", "{}"}}}},
		{name: "a name", text: `[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}`, want: answer{calls: paris}},
		{name: "a name and JSON", text: `[TOOL_CALLS]get_weather{"city": "Paris"}`, want: answer{calls: paris}},
		{name: "an id", text: `[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Paris"}`, want: answer{calls: paris}},
		{name: "two names", text: `[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[ARGS]{}`,
			want: answer{calls: []made{paris[0], {"now", "{}"}}}},
		{name: "an unknown name", text: `[TOOL_CALLS]fly[ARGS]{}`, want: answer{content: `[TOOL_CALLS]fly[ARGS]{}`}},
		{name: "a bad list", text: `[TOOL_CALLS][{"name": "now", "arguments": 3}]`,
			want: answer{content: `[TOOL_CALLS][{"name": "now", "arguments": 3}]`}},
		{name: "cut", text: `[TOOL_CALLS]get_weather[ARGS]{"ci`, want: answer{content: `[TOOL_CALLS]get_weather[ARGS]{"ci`}},
	})
	f, err := Lookup("mistral")
	require.NoError(t, err)
	id := func(text string) string {
		return NewParser(Options{Format: f, Tools: caseTools, Held: true}).Push(text)[0].ID
	}
	require.Regexp(t, "^[0-9a-z]{9}$", id("[TOOL_CALLS]now[ARGS]{}"), "the template refuses other ids")
	require.Equal(t, "a1b2c3d4e", id("[TOOL_CALLS]now[CALL_ID]a1b2c3d4e[ARGS]{}"))
}

func TestKimiCases(t *testing.T) {
	const begin, end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
	call := func(id, arguments string) string {
		return "<|tool_call_begin|>" + id + "<|tool_call_argument_begin|>" + arguments + "<|tool_call_end|>"
	}
	checkCases(t, "kimi", []parseCase{
		{name: "one call", text: "Yes. " + begin + call("functions.get_weather:0", `{"city": "Paris"}`) + end,
			want: answer{content: "Yes.", calls: paris}},
		{name: "two calls", text: begin + call("functions.get_weather:0", `{"city": "Paris"}`) + "\n" + call("functions.now:1", "{}") + end,
			want: answer{calls: []made{paris[0], {"now", "{}"}}}},
		{name: "an id twice", text: begin + call("functions.now:0", "{}") + call("functions.now:0", "{}") + end,
			want: answer{calls: []made{{"now", "{}"}, {"now", "{}"}}}},
		{name: "cut in the end of the section", text: begin + call("functions.now:0", "{}") + "<|tool_calls_sect",
			want: answer{calls: []made{{"now", "{}"}}}},
		{name: "no section", text: call("functions.now:0", "{}"), want: answer{calls: []made{{"now", "{}"}}}},
		{name: "a name with points", text: begin + call("functions.mcp.list-files_2:0", "{}") + end,
			want: answer{calls: []made{{"mcp.list-files_2", "{}"}}}},
		{name: "an unknown name", text: begin + call("functions.fly:0", "{}") + end,
			want: answer{content: begin + call("functions.fly:0", "{}") + end}},
		{name: "cut", text: begin + "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{",
			want: answer{content: begin + "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{"}},
	})
	f, err := Lookup("kimi")
	require.NoError(t, err)
	p := NewParser(Options{Format: f, Tools: caseTools, Held: true})
	require.Equal(t, "functions.now:7", p.Push(call("functions.now:7", "{}"))[0].ID, "the template expects the model's id back")
}

func TestDeepSeekCases(t *testing.T) {
	call := func(head string) string { return deepseekCallBegin + head + deepseekCallEnd }
	const old = "function" + deepseekSeparator + "get_weather\n```json\n{\"city\": \"Paris\"}\n```"
	cases := []parseCase{
		{name: "one call", text: "Yes. " + deepseekBegin + call("get_weather"+deepseekSeparator+`{"city": "Paris"}`) + deepseekEnd,
			want: answer{content: "Yes.", calls: paris}},
		{name: "two calls",
			text: deepseekBegin + call("get_weather"+deepseekSeparator+`{"city": "Paris"}`) + call("now"+deepseekSeparator+"{}") + deepseekEnd,
			want: answer{calls: []made{paris[0], {"now", "{}"}}}},
		{name: "V3", text: deepseekBegin + call(old) + "\n" + call(old) + deepseekEnd, want: answer{calls: []made{paris[0], paris[0]}}},
		{name: "an unknown name", text: deepseekBegin + call("fly"+deepseekSeparator+"{}"),
			want: answer{content: deepseekBegin + call("fly"+deepseekSeparator+"{}")}},
		{name: "cut", text: deepseekBegin + deepseekCallBegin + "now" + deepseekSeparator + `{"a": `,
			want: answer{content: deepseekBegin + deepseekCallBegin + "now" + deepseekSeparator + `{"a":` + " "}},
	}
	checkCases(t, "deepseek", cases)
	checkCases(t, "deepseek-v3", cases)
}

func TestGemmaCases(t *testing.T) {
	cases := func(begin, end, q string) []parseCase {
		return []parseCase{
			{name: "one call", text: "Yes. " + begin + "call:get_weather{city:" + q + "Paris" + q + "}" + end,
				want: answer{content: "Yes.", calls: paris}},
			{name: "two calls", text: begin + "call:get_weather{city:" + q + "Paris" + q + "}" + end + begin + "call:now{}" + end,
				want: answer{calls: []made{paris[0], {"now", "{}"}}}},
			{name: "values",
				text: begin + "call:get_weather{city:" + q + "a}{\"," + q + ",days:3,metric:true,limit:null,tags:[" + q + "x" + q + "," + q + "y" + q + "],place:{" + q + "a" + q + ":{b:-1.5}}}" + end,
				want: answer{calls: []made{{"get_weather",
					`{"city": "a}{\",", "days": 3, "metric": true, "limit": null, "tags": ["x", "y"], "place": {"a": {"b": -1.5}}}`}}}},
			{name: "a bare string", text: begin + "call:get_weather{city:Paris}" + end, want: answer{calls: paris}},
			{name: "an unknown name", text: begin + "call:fly{}" + end, want: answer{content: begin + "call:fly{}" + end}},
			{name: "cut", text: begin + "call:get_weather{city:" + q + "Pa",
				want: answer{content: begin + "call:get_weather{city:" + q + "Pa"}},
		}
	}
	checkCases(t, "gemma", cases("<|tool_call>", "<tool_call|>", `<|"|>`))
	checkCases(t, "functiongemma", cases("<start_function_call>", "<end_function_call>", "<escape>"))
}

func TestHarmonyCases(t *testing.T) {
	const call = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\"}"
	checkCases(t, "harmony", []parseCase{
		{name: "reasoning and content", text: "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.\n",
			want: answer{reasoning: "Hm.", content: "Yes.\n"}},
		{name: "reasoning and a call", text: "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" + call + "<|call|>",
			want: answer{reasoning: "Hm.", calls: paris}},
		{name: "the end of the call is not in the text", text: call, want: answer{calls: paris}},
		{name: "the recipient first", text: " to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"Paris\"}",
			want: answer{calls: paris}},
		{name: "the recipient in the role",
			text: "<|start|>assistant to=functions.get_weather<|channel|>commentary<|message|>{\"city\": \"Paris\"}<|call|>",
			want: answer{calls: paris}},
		{name: "a preamble", text: "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant" + call,
			want: answer{content: "I will look.", calls: paris}},
		{name: "no header", text: "Hello <|world|>", want: answer{content: "Hello <|world|>"}},
		{name: "an unknown name", text: "<|channel|>commentary to=functions.fly<|message|>{}", want: answer{reasoning: "{}"}},
		{name: "a call to a built-in tool",
			text: "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>analysis to=python code<|message|>1 + 1<|call|>" +
				"<|start|>assistant<|channel|>final<|message|>Two.<|return|>", want: answer{reasoning: "Hm.\n1 + 1", content: "Two."}},
		{name: "a recipient in the role that is no function",
			text: "<|start|>assistant to=browser.open<|channel|>commentary json<|message|>{\"id\": 1}<|call|>",
			want: answer{reasoning: `{"id": 1}`}},
		{name: "reasoning to the assistant",
			text: "<|channel|>analysis to=assistant<|message|>Hm.<|end|><|start|>assistant to=user<|channel|>final<|message|>Yes.",
			want: answer{reasoning: "Hm.", content: "Yes."}},
		{name: "two messages of a kind",
			text: "<|channel|>analysis<|message|>A.<|end|><|start|>assistant<|channel|>analysis<|message|>B.<|end|>" +
				"<|start|>assistant<|channel|>commentary<|message|>C.<|end|><|start|>assistant<|channel|>final<|message|>D.",
			want: answer{reasoning: "A.\nB.", content: "C.\nD."}},
		{name: "no end and no start", text: "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Yes.",
			want: answer{reasoning: "Hm.", content: "Yes."}},
		{name: "stray markers", text: "<|message|>Yes <|constrain|> no.<|end|>", want: answer{content: "Yes no."}},
		{name: "stray markers in a message", text: "<|channel|>final<|message|>Yes<|message|> no.", want: answer{content: "Yes no."}},
		{name: "cut in reasoning", text: "<|channel|>analysis<|message|>a b", want: answer{reasoning: "a b"}},
		{name: "cut in a header", text: "<|channel|>commentary to=func", want: answer{}},
		{name: "cut in the next header", text: "<|channel|>final<|message|>Yes.<|end|><|start|>assistant<|chan",
			want: answer{content: "Yes."}},
		{name: "cut in the name of a channel", text: "<|channel|>ana", want: answer{}},
		{name: "a start without a header", text: "<|start|>Yes, and <|channel|>finally no.", want: answer{content: "Yes, and finally no."}},
		{name: "a long text after a start", text: "<|channel|>" + strings.Repeat("a b ", 260) + "<|message|>c",
			want: answer{content: strings.Repeat("a b ", 260) + "c"}},
		{name: "a missing end", text: "<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b",
			want: answer{reasoning: "a", content: "b"}},
	})
}

func TestTemplatesShowTheirFormat(t *testing.T) {
	for template, want := range map[string]string{
		"{{ message.content }}":                                       "",
		"<tool_call>{{ x }}</tool_call>":                              "hermes",
		`<tool_call>{"name": x}</think>`:                              "hermes+think",
		"<tool_call>\n{{- '{\"name\": \"' }}":                         "hermes",
		`"<tool_call>\n{\"arguments\": {}`:                            "hermes",
		"'<tool_call>' + (call | tojson)":                             "hermes",
		"<tool_call><function=x><parameter=y>":                        "qwen3-xml",
		"<tool_call>{{ name }}<arg_key>":                              "glm",
		`{"name": function name, "parameters": dictionary}`:           "llama3-json",
		`{\"name\": NAME, \"parameters\": {}} <|python_tag|>`:         "llama3-json",
		"<|python_start|> <|python_tag|>":                             "pythonic",
		"'<seed:tool_call>' </seed:think> <function=f> <parameter=a>": "seed-oss+think",
		"[TOOL_CALLS] [/THINK]":                                       "mistral+think",
		"<|tool_calls_section_begin|>":                                "kimi",
		deepseekCallBegin + "</think>":                                "deepseek+think",
		deepseekCallBegin + "```json":                                 "deepseek-v3",
		"<|channel|>analysis<|message|>":                              "harmony",
		"<|tool_call>call: <channel|>":                                "gemma+think",
		"<start_function_call>":                                       "functiongemma",
		"{{ '</think>' }}":                                            "none+think",
	} {
		f := Detect(template)
		require.Equal(t, want, f.String(), template)
		again, err := Lookup(f.String())
		require.NoError(t, err)
		require.Equal(t, want, again.String())
	}
}

func TestTemplatesOfFixturesShowTheirFormat(t *testing.T) {
	for file, want := range map[string]string{"qwen2_5": "hermes", "qwen3": "hermes+think", "llama3": "llama3-json", "mistral": "mistral",
		"chatml": "", "llama2": "", "zephyr": "", "tiny-chat": ""} {
		template, err := os.ReadFile("../../testdata/templates/" + file + ".jinja")
		require.NoError(t, err)
		require.Equal(t, want, Detect(string(template)).String(), file)
	}
}

func TestAnOverrideChoosesTheFormat(t *testing.T) {
	shown := Detect("<tool_call>{{ x }}</tool_call></think>")
	for name, want := range map[string]string{"auto": "hermes+think", "kimi": "kimi+think", "none": "none+think",
		"hermes+think": "hermes+think"} {
		f, err := shown.Override(name)
		require.NoError(t, err)
		require.Equal(t, want, f.String(), name)
	}
	f, err := Format{}.Override("none")
	require.NoError(t, err)
	require.True(t, f.Plain())
	_, err = Format{}.Override("hermse")
	require.ErrorContains(t, err, `found "hermse", expected deepseek, `)
	require.ErrorContains(t, err, "qwen3-xml")
}

func TestTheFirstTemplateOfDeepSeekR1BeginsInReasoning(t *testing.T) {
	const r1 = "{% set content = content.split('</think>')[-1] %}" + deepseekCallBegin
	require.True(t, BeginsInReasoning(r1))
	require.False(t, BeginsInReasoning(r1+"<think>"), "the template says it in each prompt")
	require.False(t, BeginsInReasoning(deepseekCallBegin), "no reasoning")
	require.False(t, BeginsInReasoning("content.split('</think>')[-1] <tool_call>"), "another model")
}

func TestAPromptMayOpenReasoning(t *testing.T) {
	for prompt, want := range map[string]Thought{
		"<|im_start|>assistant\n<think>\n":                    Opened,
		"<｜Assistant｜><think>":                                Opened,
		"assistant\n[THINK]":                                  Opened,
		"<|im_start|>assistant\n<think>\n\n</think>\n\n":      Closed,
		"<start_of_turn>model\n<|channel>thought\n<channel|>": Closed,
		"assistant\n<seed:think><seed:cot_budget_reflect>":    Opened,
		"user: <think>\n<|im_start|>assistant\n":              Unsaid,
		"":                                                    Unsaid,
	} {
		require.Equal(t, want, ThoughtOf(prompt), prompt)
	}
}
