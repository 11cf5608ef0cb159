package llguidance

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/grammar"
)

// largeVocabulary has as many tokens as those of Llama 3: bytes, words as text has them, numbers, spaces and what JSON is full of.
func largeVocabulary(tb testing.TB) *Engine {
	tb.Helper()
	const size = 128 << 10
	tokens := make([]Token, 0, size)
	seen := make(map[string]bool, size)
	add := func(text string) {
		if !seen[text] && len(tokens) < size-1 {
			seen[text] = true
			tokens = append(tokens, Token{Bytes: []byte(text)})
		}
	}
	for b := range 256 {
		add(string([]byte{byte(b)}))
	}
	for n := range 1000 {
		add(fmt.Sprint(n))
	}
	for n := range 64 {
		add(fmt.Sprintf("%*s", n+2, ""))
		add("\n" + fmt.Sprintf("%*s", n, ""))
	}
	for _, a := range []string{`{`, `}`, `[`, `]`, `,`, `:`, `"`} {
		for _, b := range []string{`{`, `}`, `[`, `]`, `,`, `:`, `"`, " ", "\n"} {
			for _, c := range []string{``, `"`, ` "`, ",", "}", "\n", " {"} {
				add(a + b + c)
			}
		}
	}
	rng := rand.New(rand.NewPCG(1, 128))
	starts := []string{"", "b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "st", "tr", "ch", "é", "ж", "日"}
	vowels := []string{"a", "e", "i", "o", "u", "ea", "ou", "ä"}
	ends := []string{"", "n", "r", "s", "t", "ng", "ll", "nd"}
	for len(tokens) < size-1 {
		word := ""
		for range 1 + rng.IntN(4) {
			word += starts[rng.IntN(len(starts))] + vowels[rng.IntN(len(vowels))] + ends[rng.IntN(len(ends))]
		}
		switch rng.IntN(8) {
		case 0:
			add(word)
		case 1:
			add(word + `":`)
		case 2:
			add(word + `",`)
		default:
			add(" " + word)
		}
	}
	tokens = append(tokens, Token{Bytes: []byte("<|end|>"), Special: true})
	e, err := New(nil, tokens, []int32{size - 1})
	require.NoError(tb, err)
	return e
}

// BenchmarkMask computes masks at places of an answer, over 128k tokens. Advancing and going back are in it.
func BenchmarkMask(b *testing.B) {
	e := largeVocabulary(b)
	const order = `{"type":"object","additionalProperties":false,"required":["id","name","price","tags"],"properties":{
		"id":{"type":"string","pattern":"^[A-Z]{3}-[0-9]{4}$"},"name":{"type":"string"},"price":{"type":"number","minimum":0},
		"tags":{"type":"array","items":{"type":"string","maxLength":12}},"note":{"type":"string"},"parent":{"$ref":"#"}}}`
	for _, c := range []struct {
		name   string
		kind   grammar.Kind
		source string
		before string
	}{
		{"string", grammar.JSONSchema, order, `{"id":"ABC-1234","name":"the`},
		{"bounded-string", grammar.JSONSchema, order, `{"id":"ABC-1234","name":"x","price":1,"tags":["ab`},
		{"pattern", grammar.JSONSchema, order, `{"id":"AB`},
		{"number", grammar.JSONSchema, order, `{"id":"ABC-1234","name":"x","price":1`},
		{"key", grammar.JSONSchema, order, `{"id":"ABC-1234","name":"x","price":1,"tags":[],"`},
		{"any-value", grammar.JSONSchema, `{"type":"object"}`, `{"a":`},
		{"regex", grammar.Regex, `[a-z ]{0,2000}\.`, `the quick`},
		{"choice", grammar.Lark, "start: C\nC: \"yes\" | \"no\" | \"maybe\"", ``},
	} {
		b.Run(c.name, func(b *testing.B) {
			p, err := e.Compile(c.kind, c.source)
			require.NoError(b, err)
			a, err := p.Start()
			require.NoError(b, err)
			defer a.Close()
			for i := range len(c.before) {
				ok, _, err := a.Advance(int32(c.before[i]))
				require.True(b, ok && err == nil, "%s at %d: %v", c.before, i, err)
			}
			mask := grammar.NewMask(e.Size())
			require.NoError(b, a.Mask(mask))
			b.ReportAllocs()
			next := firstByte(mask)
			for b.Loop() {
				ok, _, err := a.Advance(next)
				if !ok || err != nil {
					b.Fatal(ok, err)
				}
				if err := a.Mask(mask); err != nil {
					b.Fatal(err)
				}
				if err := a.Rollback(1); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(p.Held())/1e6, "MB-held")
		})
	}
}

// firstByte is a token of a mask that is one byte.
func firstByte(mask grammar.Mask) int32 {
	for id := range int32(256) {
		if id > ' ' && mask.Allows(id) {
			return id
		}
	}
	return ' '
}

// BenchmarkAnswer is a whole answer: a mask and a token at a time, in the order of the schema.
func BenchmarkAnswer(b *testing.B) {
	e := largeVocabulary(b)
	p,
		err := e.Compile(grammar.JSONSchema,
		`{"type":"object","required":["a","b"],"properties":{"a":{"type":"string"},"b":{"type":"array","items":{"type":"integer"}}}}`)
	require.NoError(b, err)
	const text = `{"a":"the quick brown fox jumps over the lazy dog","b":[1,22,333,4444]}`
	mask := grammar.NewMask(e.Size())
	masks := 0
	for b.Loop() {
		a, err := p.Start()
		require.NoError(b, err)
		for i := range len(text) {
			if err := a.Mask(mask); err != nil {
				b.Fatal(err)
			}
			masks++
			if ok, _, err := a.Advance(int32(text[i])); !ok || err != nil {
				b.Fatalf("at %d: %v", i, err)
			}
		}
		a.Close()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(masks), "µs/mask")
}
