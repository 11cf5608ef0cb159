package tokenizer_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/tokenizer"
)

// loadWithEnd loads a vocabulary of the fixtures, which name no token that ends an answer.
func loadWithEnd(t testing.TB, dir string) *tokenizer.Tokenizer {
	t.Helper()
	if dir == demoModel {
		return load(t, dir)
	}
	data, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	require.NoError(t, err)
	end := "</s>"
	if !strings.Contains(string(data), end) {
		end = "<|end|>"
	}
	copied := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(copied, "tokenizer.json"), data, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(copied, "tokenizer_config.json"), []byte(`{"eos_token":"`+end+`"}`), 0o600))
	return load(t, copied)
}

func engine(t testing.TB, tok *tokenizer.Tokenizer) grammar.Engine {
	t.Helper()
	e, err := tok.Grammars()
	require.NoError(t, err)
	return e
}

func compile(t testing.TB, e grammar.Engine, kind grammar.Kind, source string) grammar.Automaton {
	t.Helper()
	p, err := e.Compile(kind, source)
	require.NoError(t, err, source)
	a, err := p.Start()
	require.NoError(t, err)
	t.Cleanup(a.Close)
	return a
}

// follow feeds a text to an automaton. It returns how many of its bytes were taken, and whether the text may end there.
func follow(t testing.TB, tok *tokenizer.Tokenizer, a grammar.Automaton, text string) (taken int, ends bool) {
	t.Helper()
	ids, err := tok.Encode(text, false)
	require.NoError(t, err)
	for _, id := range ids {
		ok, _, err := a.Advance(id)
		require.NoError(t, err)
		if !ok {
			return taken, false
		}
		taken += len(tok.TokenBytes(id))
	}
	mask := grammar.NewMask(tok.VocabSize())
	require.NoError(t, a.Mask(mask))
	for _, end := range tok.EOS() {
		require.Equal(t, mask.Allows(tok.EOS()[0]), mask.Allows(end), "all ends alike")
	}
	return taken, mask.Allows(tok.EOS()[0])
}

const person = `{"type":"object","properties":{"name":{"type":"string","maxLength":20},"age":{"type":"integer","minimum":0,"maximum":120},
	"tags":{"type":"array","items":{"enum":["a","b\"é"]},"maxItems":2},"next":{"$ref":"#"}},"required":["name"],"additionalProperties":false}`

func TestAGrammarTakesItsTextsAndNoOther(t *testing.T) {
	tok := load(t, demoModel)
	e := engine(t, tok)
	for _, c := range []struct {
		kind    grammar.Kind
		source  string
		in, out []string
	}{
		{grammar.JSONSchema, person,
			[]string{`{"name":"x"}`, `{ "name": "Zoë 😀", "age": 120 }`,
				`{"name":"x","tags":["a","b\"é"],"next":{"name":"y","next":{"name":"z"}}}`},
			[]string{``, `{}`, `{"name":7}`, `{"name":"x","age":121}`, `{"name":"x","age":-1}`, `{"name":"x","tags":["c"]}`,
				`{"name":"x","tags":["a","a","a"]}`, `{"name":"x","more":1}`, `{"name":"x"`, `{"name":"x"}}`,
				`{"name":"` + strings.Repeat("x", 21) + `"}`}},
		{grammar.JSONSchema, `{"type":"object"}`, []string{`{}`, `{"a":[1,{"b":null}]}`}, []string{`[]`, `"a"`, `{"a"}`}},
		{grammar.Regex, `\d{3}-[a-f]+`, []string{"123-abc"}, []string{"12-abc", "123-", "123-x"}},
		{grammar.Lark, "start: \"(\" start \")\" | \"x\"", []string{"x", "((x))"}, []string{"(x", "()", "x)"}},
	} {
		for _, text := range c.in {
			taken, ends := follow(t, tok, compile(t, e, c.kind, c.source), text)
			require.True(t, ends && taken == len(text), "%s takes %d bytes of %s", c.source, taken, text)
		}
		for _, text := range c.out {
			taken, ends := follow(t, tok, compile(t, e, c.kind, c.source), text)
			require.False(t, ends && taken == len(text), "%s takes %s", c.source, text)
		}
	}
}

// TestEveryKindOfVocabularyHasGrammars: byte-level, with bytes as tokens, and with spaces before words.
func TestEveryKindOfVocabularyHasGrammars(t *testing.T) {
	for _, name := range []string{"byte-fallback", "byte-fallback-metaspace", "byte-level", "byte-level-sequence"} {
		tok := loadWithEnd(t, "../testdata/tokenizers/"+name)
		a := compile(t, engine(t, tok), grammar.Regex, `[^"]*"é"`)
		taken, ends := follow(t, tok, a, `the word "é"`)
		require.True(t, ends, "%s: %d bytes taken", name, taken)
	}
}

// TestForcedTokensAreThoseOfTheTokenizer: a text that the grammar forces has the tokens that the tokenizer makes of it.
func TestForcedTokensAreThoseOfTheTokenizer(t *testing.T) {
	for _, dir := range []string{demoModel, "../testdata/tokenizers/byte-fallback", "../testdata/tokenizers/byte-fallback-metaspace"} {
		tok := loadWithEnd(t, dir)
		e := engine(t, tok)
		const text = "once upon a time there was"
		a := compile(t, e, grammar.Regex, " ?Qx"+text+"[.!]")
		ids, err := tok.Encode("Q", false)
		require.NoError(t, err)
		spelled := ""
		for _, id := range ids {
			ok, _, err := a.Advance(id)
			require.True(t, ok && err == nil)
			spelled += string(tok.TokenBytes(id))
		}
		forced := make([]int32, 32)
		n, err := a.Forced(forced)
		require.NoError(t, err)
		require.Greater(t, n, 3, dir)
		mask := grammar.NewMask(tok.VocabSize())
		for _, id := range forced[:n] {
			require.NoError(t, a.Mask(mask))
			for other := range int32(tok.VocabSize()) {
				require.Equal(t, other == id, mask.Allows(other), "the mask allows it alone")
			}
			ok, _, err := a.Advance(id)
			require.True(t, ok && err == nil)
			spelled += string(tok.TokenBytes(id))
		}
		require.Contains(t, "Qx"+text, strings.TrimSpace(spelled))
		want, err := tok.Encode("Qx"+text, false)
		require.NoError(t, err)
		require.Equal(t, want[len(ids):len(ids)+3], forced[:3], dir)
	}
}

func TestNoTextHasASpecialToken(t *testing.T) {
	tok := load(t, demoModel)
	a := compile(t, engine(t, tok), grammar.Regex, `(?s:.*)`)
	mask := grammar.NewMask(tok.VocabSize())
	require.NoError(t, a.Mask(mask))
	specials := 0
	for id := range int32(tok.VocabSize()) {
		if tok.IsSpecial(id) {
			specials++
			require.Equal(t, isEnd(tok, id), mask.Allows(id), tok.TokenText(id))
		}
	}
	require.Greater(t, specials, 4)
	require.True(t, mask.Allows(idOf(t, tok, "a")))
}

func TestAGrammarThatCannotBeCompiledSaysWhy(t *testing.T) {
	tok := load(t, demoModel)
	e := engine(t, tok)
	for _, c := range []struct {
		kind         grammar.Kind
		source, says string
	}{
		{grammar.JSONSchema, `{"type":"object","properties":7}`, "7 is not of type"},
		{grammar.JSONSchema, `{"type":"thing"}`, "thing"},
		{grammar.JSONSchema, `{"type":"array","uniqueItems":true}`, "uniqueItems"},
		{grammar.JSONSchema, `{"$ref":"https://example.org/x"}`, "example.org"},
		{grammar.JSONSchema, `{"type":"integer","minimum":5,"maximum":3}`, "minimum"},
		{grammar.JSONSchema, `false`, "false"},
		{grammar.Regex, `(`, "unclosed"},
		{grammar.Regex, `(?=a)b`, "look-around"},
		{grammar.Lark, `start: other`, "other"},
		{grammar.Lark, `start: "a`, "lexer error"},
		{"xml", `x`, "xml"},
	} {
		_, err := e.Compile(c.kind, c.source)
		require.ErrorIs(t, err, grammar.ErrSpec, c.source)
		require.Contains(t, err.Error(), c.says)
		require.Less(t, len(err.Error()), 400)
		require.NotContains(t, err.Error(), "\n")
	}
}

// TestABombEndsAtALimit: in time and memory, and the engine works on.
func TestABombEndsAtALimit(t *testing.T) {
	tok := load(t, demoModel)
	e := engine(t, tok)
	deep := strings.Repeat(`{"items":`, 60) + `{}` + strings.Repeat(`}`, 60)
	branches := `{"anyOf":[` + strings.Repeat(`{"type":"object","properties":{"a":{"type":"string","pattern":"^(a|b|c)*[d-z]{1,200}$"}}},`,
		2000) + `{}]}`
	all := `{"$defs":{"a0":{"anyOf":[{"type":"string"},{"type":"integer"}]}`
	for i := range 24 {
		all += strings.ReplaceAll(strings.ReplaceAll(`,"aN":{"allOf":[{"$ref":"#/$defs/aM"},{"anyOf":[{"$ref":"#/$defs/aM"},{"properties":{"pN":{}}}]}]}`, "N", string(rune('1'+i))), "M", string(rune('0'+i)))
	}
	all += `},"$ref":"#/$defs/a` + string(rune('0'+24)) + `"}`
	for _, c := range []struct {
		kind   grammar.Kind
		source string
	}{
		{grammar.Regex, `((a{1,1000}){1,1000}){1,1000}`},
		{grammar.Regex, strings.Repeat("(", 5000) + "a" + strings.Repeat(")*", 5000)},
		{grammar.Regex, `(a|b)*a(a|b){5000}`},
		{grammar.JSONSchema, deep}, {grammar.JSONSchema, branches}, {grammar.JSONSchema, all},
		{grammar.Lark, "start: A\nA: " + strings.Repeat("(", 3000) + `"a"` + strings.Repeat(")", 3000)},
		{grammar.Lark, "start: " + strings.Repeat("(", 100000)},
		{grammar.Lark, "start: x{1,1000000000}\nx: \"a\""},
	} {
		begin := time.Now()
		p, err := e.Compile(c.kind, c.source)
		if err == nil { // it compiles, so its masks have to be bounded
			a, err := p.Start()
			require.NoError(t, err)
			mask := grammar.NewMask(tok.VocabSize())
			for range 20 {
				if a.Mask(mask) != nil {
					break
				}
				if ok, _, err := a.Advance(idOf(t, tok, "a")); !ok || err != nil {
					break
				}
			}
			a.Close()
		}
		t.Logf("%.60s: %s, %v", c.source, time.Since(begin).Round(time.Millisecond), err)
	}
	taken, ends := follow(t, tok, compile(t, e, grammar.JSONSchema, person), `{"name":"x"}`)
	require.True(t, ends, "%d", taken)
}

// TestAnAutomatonIsWhatItsTokensMakeIt: whatever was tried and taken back before, and whichever other
// sequences share its program.
func TestAnAutomatonIsWhatItsTokensMakeIt(t *testing.T) {
	tok := load(t, demoModel)
	p, err := engine(t, tok).Compile(grammar.JSONSchema, person)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for seed := range uint64(4) {
		wg.Go(func() { wander(t, tok, p, rand.New(rand.NewPCG(seed, 1))) })
	}
	wg.Wait()
	require.Positive(t, p.Held())
}

func wander(t *testing.T, tok *tokenizer.Tokenizer, p grammar.Program, rng *rand.Rand) {
	a, err := p.Start()
	if err != nil {
		t.Error(err)
		return
	}
	defer a.Close()
	var tokens []int32
	mask, again := grammar.NewMask(tok.VocabSize()), grammar.NewMask(tok.VocabSize())
	for range 150 {
		if err := a.Mask(mask); err != nil {
			t.Error(err)
			return
		}
		if id := anyOf(tok, mask, rng); id >= 0 && rng.IntN(4) > 0 {
			if ok, _, err := a.Advance(id); !ok || err != nil {
				t.Errorf("token %d of the mask is refused: %v", id, err)
				return
			}
			tokens = append(tokens, id)
		} else if n := rng.IntN(len(tokens) + 1); n > 0 {
			if err := a.Rollback(n); err != nil {
				t.Error(err)
				return
			}
			tokens = tokens[:len(tokens)-n]
		}
	}
	b, err := p.Start()
	if err != nil {
		t.Error(err)
		return
	}
	defer b.Close()
	for _, id := range tokens {
		if ok, _, err := b.Advance(id); !ok || err != nil {
			t.Errorf("token %d is refused again: %v", id, err)
			return
		}
	}
	if a.Mask(mask) != nil || b.Mask(again) != nil {
		t.Error("no mask")
	}
	for i := range mask {
		if mask[i] != again[i] {
			t.Errorf("after %d tokens the masks differ", len(tokens))
			return
		}
	}
}

// anyOf is a token of a mask that is no end, -1 if there is none.
func anyOf(tok *tokenizer.Tokenizer, mask grammar.Mask, rng *rand.Rand) int32 {
	first := rng.IntN(tok.VocabSize())
	for i := range tok.VocabSize() {
		id := int32((first + i) % tok.VocabSize())
		if mask.Allows(id) && !isEnd(tok, id) {
			return id
		}
	}
	return -1
}

func isEnd(tok *tokenizer.Tokenizer, id int32) bool { return slices.Contains(tok.EOS(), id) }

func idOf(t testing.TB, tok *tokenizer.Tokenizer, text string) int32 {
	t.Helper()
	ids, err := tok.Encode(text, false)
	require.NoError(t, err)
	require.Len(t, ids, 1)
	return ids[0]
}

func TestProgramsOutliveTheirTokenizer(t *testing.T) {
	tok, err := tokenizer.Load(demoModel)
	require.NoError(t, err)
	e, err := tok.Grammars()
	require.NoError(t, err)
	p, err := e.Compile(grammar.Regex, "x(once upon|twice)!")
	require.NoError(t, err)
	require.NoError(t, tok.Close())
	a, err := p.Start()
	require.NoError(t, err)
	defer a.Close()
	mask := grammar.NewMask(tok.VocabSize())
	for range 3 {
		require.NoError(t, a.Mask(mask))
		id := anyOf(tok, mask, rand.New(rand.NewPCG(1, 1)))
		ok, _, err := a.Advance(id)
		require.True(t, ok && err == nil)
	}
	_, err = tok.Grammars()
	require.ErrorIs(t, err, tokenizer.ErrClosed)
}

func TestAModelWithoutATokenizerHasNoGrammars(t *testing.T) {
	tok, err := tokenizer.Bare(t.TempDir(), 100)
	require.NoError(t, err)
	_, err = tok.Grammars()
	require.ErrorContains(t, err, "tokenizer.json")
	tok = load(t, "../testdata/tokenizers/byte-level")
	_, err = tok.Grammars()
	require.ErrorContains(t, err, "ends an answer")
}
