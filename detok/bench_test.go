package detok_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/detok"
)

const story = "Once upon a time there was a fox. The fox saw a river, and said: what is the capital of the US? "

func benchmark(b *testing.B, dir string, o detok.Options) {
	b.Helper()
	tok := load(b, dir)
	ids, err := tok.Encode(story, false)
	require.NoError(b, err)
	s := detok.New(tok, o)
	bytes, n := 0, 0
	b.ReportAllocs()
	for b.Loop() {
		text, _ := s.Push(ids[n%len(ids)])
		bytes += len(text)
		n++
	}
	require.Positive(b, bytes)
}

func BenchmarkPush(b *testing.B) {
	stops := detok.Options{Stop: []string{"\n\nUser:", "<|end|>", "###", "zzz"}}
	b.Run("byte-level", func(b *testing.B) { benchmark(b, demoModel, detok.Options{}) })
	b.Run("byte-level/4-stops", func(b *testing.B) { benchmark(b, demoModel, stops) })
	b.Run("sentencepiece", func(b *testing.B) { benchmark(b, filepath.Join(fixtures, "byte-fallback"), detok.Options{}) })
	b.Run("wordpiece", func(b *testing.B) { benchmark(b, filepath.Join(fixtures, "wordpiece"), detok.Options{}) })
}

func TestWholeTokensOfAByteLevelVocabularyAllocateNothing(t *testing.T) {
	tok := load(t, demoModel)
	ids, err := tok.Encode(story, false)
	require.NoError(t, err)
	s := detok.New(tok, detok.Options{Stop: []string{"zzz"}})
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for _, id := range ids {
			s.Push(id)
		}
	}))
}
