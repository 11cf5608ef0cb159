package tokenizer_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tokenizer"
)

func BenchmarkRenderAndEncodeChat(b *testing.B) {
	tok := load(b, demoModel)
	var chat tokenizer.Chat
	for range 20 {
		chat.Messages = append(chat.Messages,
			api.Message{Role: "user", Content: "What is the capital of the US?"},
			api.Message{Role: "assistant", Content: strings.Repeat("The capital is Washington. ", 4)})
	}
	b.ReportAllocs()
	tokens := 0
	for b.Loop() {
		text, err := tok.RenderChat(chat)
		require.NoError(b, err)
		ids, err := tok.Encode(text, false)
		require.NoError(b, err)
		tokens += len(ids)
	}
	b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
}

func BenchmarkRenderChat(b *testing.B) {
	tok := load(b, demoModel)
	chat := tokenizer.Chat{Messages: []api.Message{{Role: "user", Content: "What is the capital of the US?"}}}
	b.ReportAllocs()
	for b.Loop() {
		_, err := tok.RenderChat(chat)
		require.NoError(b, err)
	}
}
