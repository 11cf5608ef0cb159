package calls_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/openai"
	"github.com/millrace/millrace/durable/calls"
)

// spelling returns an engine that answers each choice with the pieces of a text, as far as the gate is open. The
// prompt opens reasoning.
func spelling(g *gate, pieces []string) *apitest.Engine {
	e := apitest.New(func(r *api.Request, s *apitest.Stream) {
		at := make([]int, r.N)
		for c := range at {
			if r.Takeover != nil {
				at[c] = len(r.Takeover.Choices[c].Tokens)
			}
		}
		for c := range at {
			for ; at[c] < len(pieces); at[c]++ {
				if !g.wait(at[c], s.Closed()) || !s.Send(api.Event{Choice: c, Text: pieces[at[c]], Tokens: []int32{int32(at[c])},
					Reasons: at[c] == 0}) {
					return
				}
			}
			if r.Takeover != nil && r.Takeover.Choices[c].Finish != api.FinishNone {
				continue
			}
			last := c == r.N-1
			ev := api.Event{Choice: c, Finish: api.FinishStop, Done: last}
			if last {
				ev.Usage = &api.Usage{PromptTokens: 7, CompletionTokens: r.N * len(pieces)}
			}
			if !s.Send(ev) {
				return
			}
		}
	})
	e.Served[0].Format = "hermes+think"
	return e
}

func TestToolCallsContinueAtAnotherGateway(t *testing.T) {
	t.Parallel() // it waits most of its time
	const text = "It rains?</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>\n<tool_call>{\"name\": \"f\"}</tool_call>"
	var pieces []string
	for rest := text; rest != ""; {
		n := min(3, len(rest))
		pieces, rest = append(pieces, rest[:n]), rest[n:]
	}
	const body = `{"messages":[{"role":"user","content":"x"}],"stream":true,"stream_resume":true,"n":2,"stream_options":{"include_usage":true},
		"tools":[{"type":"function","function":{"name":"f"}}]}`
	for _, at := range []int{1, 4, 8, 15, 22, 31, 37, len(pieces)} {
		g := newGate(at)
		e := spelling(g, pieces)
		url := natsServer(t).ClientURL()
		a, b := newGateway(t, url, e, calls.Options{}), newGateway(t, url, e, calls.Options{})
		c, err := openai.DecodeChat([]byte(body), e.Models(), time.Now())
		require.NoError(t, err)
		first, err := a.Run(t.Context(), c)
		require.NoError(t, err)
		t.Cleanup(first.Close)
		before := see(t, first).until(uint64(at))
		a.kill()
		g.open(1 << 30)
		after := see(t, attach(t, b, c.ID)).until(0)
		require.True(t, strings.HasPrefix(after, before), "cut at %d", at)

		var reasoning, content string
		arguments := map[int]map[int]string{0: {}, 1: {}}
		finish := map[int]string{}
		ids := map[string]bool{}
		for line := range strings.Lines(after) {
			var chunk struct {
				Choices []struct {
					Index int
					Delta struct {
						Content          string
						ReasoningContent string `json:"reasoning_content"`
						ToolCalls        []struct {
							Index    int
							ID       string
							Function struct{ Arguments string }
						} `json:"tool_calls"`
					}
					FinishReason string `json:"finish_reason"`
				}
			}
			require.NoError(t, json.Unmarshal([]byte(line), &chunk))
			for _, ch := range chunk.Choices {
				if ch.Index == 0 {
					reasoning += ch.Delta.ReasoningContent
					content += ch.Delta.Content
				}
				for _, call := range ch.Delta.ToolCalls {
					arguments[ch.Index][call.Index] += call.Function.Arguments
					ids[call.ID] = true
				}
				finish[ch.Index] += ch.FinishReason
			}
		}
		delete(ids, "")
		require.Equal(t, "It rains?", reasoning, "cut at %d", at)
		require.Equal(t, "Let me see.", content, "cut at %d", at)
		require.Equal(t, map[int]string{0: "tool_calls", 1: "tool_calls"}, finish)
		require.Len(t, ids, 4)
		for choice := range 2 {
			require.Equal(t, map[int]string{0: `{"city": "Paris"}`, 1: "{}"}, arguments[choice], "cut at %d", at)
		}
		require.Contains(t, after, `"completion_tokens_details":{"reasoning_tokens":`)
	}
}
