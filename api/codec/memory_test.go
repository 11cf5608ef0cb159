package codec_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/codec"
)

// allocated returns the bytes that f allocates, those that are free again among them.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// filled returns a body of 1 MiB: a beginning, as many parts as fit, and an end.
func filled(begin, part, end string) []byte {
	n := (1<<20 - len(begin) - len(end)) / (len(part) + 1)
	return []byte(begin + strings.TrimSuffix(strings.Repeat(part+",", n), ",") + end)
}

// TestABodyTakesASmallMultipleOfItsSize whatever it holds: a thousand clients that send maps of small values do not fill the memory.
func TestABodyTakesASmallMultipleOfItsSize(t *testing.T) {
	const multiple, floor = 16, 48 << 20 // the race detector takes a part
	models := []api.Model{{ID: "m", WeightFacts: api.WeightFacts{ContextLength: 1 << 20,
		Embedding: api.Embedding{Width: 4, Pooling: api.PoolLast}}, TextFacts: api.TextFacts{Judge: []int32{1, 2},
		Infill: []string{"a", "b", "c"}}}}
	chat, anthropic := `"messages":[{"role":"user","content":"a"}]`, `"max_tokens":5,"messages":[{"role":"user","content":"a"}]`
	e := apitest.New(apitest.Say("x"))
	e.Served = models
	run := map[string]func([]byte){}
	for _, p := range codec.Endpoints() {
		run[p.Path] = func(body []byte) { _, _ = p.Decode(body, models, time.Unix(5, 0)) } // most are refused
	}
	for _, u := range codec.Unaries() {
		run[u.Path] = func(body []byte) { _, _ = u.Run(t.Context(), e, body) }
	}
	for _, c := range []struct{ path, begin string }{
		{"/v1/chat/completions", `{"a":`}, {"/v1/chat/completions", `{` + chat + `,"chat_template_kwargs":{"a":`},
		{"/v1/chat/completions", `{` + chat + `,"tools":`}, {"/v1/chat/completions", `{"messages":`},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":`}, {"/v1/chat/completions", `{` + chat + `,"stop":`},
		{"/v1/chat/completions", `{` + chat + `,"logit_bias":`},
		{"/v1/chat/completions", `{` + chat + `,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"enum":`},
		{"/v1/completions", `{"prompt":`}, {"/v1/completions", `{"prompt":[`},
		{"/v1/embeddings", `{"input":`}, {"/v1/messages", `{` + anthropic + `,"tools":`},
		{"/v1/messages", `{` + anthropic + `,"system":`}, {"/v1/messages", `{"max_tokens":5,"messages":[{"role":"user","content":`},
		{"/v1/responses", `{"input":`},
		{"/api/chat", `{"messages":`}, {"/api/generate", `{"images":`}, {"/api/generate", `{"context":`}, {"/api/embed", `{"input":`},
		{"/tokenize", `{` + chat + `,"chat_template_kwargs":{"a":`}, {"/detokenize", `{"tokens":`},
	} {
		for _, values := range []struct{ begin, part, end string }{{`[`, `1`, `]`}, {`[`, `{}`, `]`}, {`[`, `""`, `]`}, {`{`, `"a":0`, `}`},
			{`[`, `{"type":"text","text":""}`, `]`}} {
			body := filled(c.begin+values.begin, values.part, values.end+closing(c.begin))
			n := allocated(func() { run[c.path](body) })
			assert.LessOrEqual(t, n, uint64(multiple*len(body)+floor), "%s: %s%s%s", c.path, c.begin, values.begin, values.part)
		}
	}
}

// closing returns the brackets that are open at the end of a JSON text without brackets in strings.
func closing(text string) (end string) {
	for _, c := range text {
		switch c {
		case '{':
			end = "}" + end
		case '[':
			end = "]" + end
		case '}', ']':
			end = end[1:]
		}
	}
	return end
}
