package tokenizer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tokenizer"
)

const fixtures = "../testdata/tokenizers"

// caseFile is what Python's tokenizers gives for the same tokenizer.json.
type caseFile struct {
	Encoded []struct {
		Encode  string
		Special bool
		IDs     []int32
	}
	Decoded []struct {
		IDs   []int32
		Text  string // special tokens kept
		Plain string // special tokens skipped
	}
}

// requireCases: a tokenizer encodes and decodes as the cases say, of which there are some.
func requireCases(t *testing.T, tok *tokenizer.Tokenizer, cases *caseFile) {
	t.Helper()
	require.NotEmpty(t, cases.Encoded)
	for _, c := range cases.Encoded {
		ids, err := tok.Encode(c.Encode, c.Special)
		require.NoError(t, err)
		require.Equal(t, c.IDs, ids, "%q, special %t", c.Encode, c.Special)
	}
	for _, c := range cases.Decoded {
		text, err := tok.Decode(c.IDs, false)
		require.NoError(t, err)
		require.Equal(t, c.Text, text, "%v", c.IDs)
		text, err = tok.Decode(c.IDs, true)
		require.NoError(t, err)
		require.Equal(t, c.Plain, text, "%v", c.IDs)
	}
}

// kinds are the folders of fixtures, and the demo model.
func kinds(t testing.TB) map[string]string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(fixtures, "*", "tokenizer.json"))
	require.NoError(t, err)
	require.Len(t, dirs, 7)
	kinds := map[string]string{demoModel: filepath.Join(fixtures, "demo.json")}
	for _, path := range dirs {
		dir := filepath.Dir(path)
		kinds[dir] = filepath.Join(dir, "cases.json")
	}
	return kinds
}

func TestEveryKindEncodesAndDecodesAsInPython(t *testing.T) {
	for dir, path := range kinds(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var cases caseFile
			readFixture(t, path, &cases)
			requireCases(t, load(t, dir), &cases)
		})
	}
}

func TestTextThatTheLibraryWouldChangeIsRefused(t *testing.T) {
	tok := load(t, demoModel)
	for text, offset := range map[string]int{
		"\xff": 0, "ab\xe6\x97": 2, "日\x80": 3, "a\xed\xa0\x80": 1, "\xc0\x80": 0,
	} {
		_, err := tok.Encode(text, false)
		require.ErrorIs(t, err, tokenizer.ErrText, "%q", text)
		require.Contains(t, err.Error(), fmt.Sprintf("offset %d", offset), "%q", text)
	}
	_, err := tok.RenderChat(tokenizer.Chat{Messages: []api.Message{{Role: "user"}, {Role: "user", Content: "a\xff"}}})
	require.ErrorIs(t, err, tokenizer.ErrText)
	require.Contains(t, err.Error(), "messages[1].content")
}

func TestANULIsTextWhereTheVocabularyHasATokenForIt(t *testing.T) {
	for folder, ids := range map[string][]int32{ // of "a\x00b", as the tokenizers library has them in Python
		demoModel: {71, 195, 72}, filepath.Join(fixtures, "byte-level"): {65, 189, 66},
		filepath.Join(fixtures, "byte-fallback"):           {298, 269, 3, 270},
		filepath.Join(fixtures, "byte-fallback-metaspace"): {298, 269, 3, 270},
	} {
		tok := load(t, folder)
		got, err := tok.Encode("a\x00b", false)
		require.NoError(t, err)
		require.Equal(t, ids, got, folder)
		for _, text := range []string{"a\x00b", "\x00", "\x00\x00 x\x00", "end\x00"} {
			ids, err := tok.Encode(text, false)
			require.NoError(t, err, folder)
			back, err := tok.Decode(ids, false)
			require.NoError(t, err)
			require.Equal(t, text, strings.TrimPrefix(back, " "), folder)
			prompt, err := tok.RenderChat(tokenizer.Chat{Messages: []api.Message{{Role: "user", Content: text}}})
			if tok.HasChatTemplate() {
				require.NoError(t, err)
				require.Contains(t, prompt, text)
			}
		}
	}
	for _, kind := range []string{"unigram", "wordpiece"} {
		_, err := load(t, filepath.Join(fixtures, kind)).Encode("a\x00b", false)
		require.ErrorIs(t, err, tokenizer.ErrText, kind)
		require.ErrorContains(t, err, "NUL byte at offset 1, which the model has no token for", kind)
	}
}

func TestIDsOutsideTheVocabularyAreRefused(t *testing.T) {
	tok := load(t, demoModel)
	for _, id := range []int32{-1, 4096, 1 << 30} {
		_, err := tok.Decode([]int32{5, id}, true)
		require.ErrorIs(t, err, tokenizer.ErrToken)
		require.Nil(t, tok.TokenBytes(id))
		require.Empty(t, tok.TokenText(id))
		require.False(t, tok.IsSpecial(id))
	}
}

func TestTextWithNULIsDecodedOrRefusedNeverLost(t *testing.T) {
	tok := load(t, filepath.Join(fixtures, "byte-fallback"))
	byID := func(piece string) int32 {
		for id := range int32(tok.VocabSize()) {
			if tok.IsByte(id) && tok.TokenText(id) == piece {
				return id
			}
		}
		t.Fatalf("no byte token %q", piece)
		return -1
	}
	all := []int32{byID("a"), byID("\x00"), byID("\x01"), byID("b")}
	text, err := tok.Decode(all, false)
	require.NoError(t, err)
	require.Equal(t, "a\x00\x01b", text)
	for control := range rune(' ') {
		all = append(all, byID(string(control)))
	}
	_, err = tok.Decode(all, false)
	require.ErrorIs(t, err, tokenizer.ErrText)
}

func TestTokenBytesAreTheBytesOfTheText(t *testing.T) {
	for _, kind := range []string{"byte-level", "byte-fallback", "byte-fallback-metaspace", "unigram", "wordpiece"} {
		tok := load(t, filepath.Join(fixtures, kind))
		const text = "the quick brown fox"
		ids, err := tok.Encode(text, false)
		require.NoError(t, err)
		var joined []byte
		for _, id := range ids {
			joined = append(joined, tok.TokenBytes(id)...)
		}
		require.Equal(t, text, strings.TrimPrefix(string(joined), " "), kind)
	}
	tok := load(t, filepath.Join(fixtures, "byte-fallback"))
	for id := range int32(tok.VocabSize()) {
		if b := tok.TokenBytes(id); tok.IsByte(id) {
			require.Len(t, b, 1)
			require.True(t, utf8.ValidString(tok.TokenText(id)))
		}
	}
	require.Equal(t, "<s>", tok.TokenText(1))
	require.True(t, tok.IsSpecial(1))
}

func TestBOSIsAddedWhereThePostProcessorAddsIt(t *testing.T) {
	dir := t.TempDir()
	data, err := os.ReadFile(filepath.Join(fixtures, "byte-fallback", "tokenizer.json"))
	require.NoError(t, err)
	write(t, dir, "tokenizer.json", string(data))
	write(t, dir, "tokenizer_config.json", `{"bos_token":{"content":"<s>","lstrip":false},"eos_token":"</s>"}`)
	write(t, dir, "generation_config.json", `{"eos_token_id":[7,2,5]}`)
	write(t, dir, "config.json", `{"eos_token_id":null}`)
	tok := load(t, dir)
	bos, _ := tok.BOS()
	ids, err := tok.Encode("a", true)
	require.NoError(t, err)
	require.Equal(t, bos, ids[0])
	require.Equal(t, []int32{2, 5, 7}, tok.EOS())
	require.False(t, tok.HasChatTemplate())
	_, err = tok.RenderChat(tokenizer.Chat{Messages: []api.Message{{Role: "user", Content: "a"}}})
	require.ErrorIs(t, err, tokenizer.ErrNoTemplate)
}

func TestWrongFilesAreErrorsThatNameThem(t *testing.T) {
	good, err := os.ReadFile(filepath.Join(fixtures, "wordpiece", "tokenizer.json"))
	require.NoError(t, err)
	for name, files := range map[string]map[string]string{
		"missing":       {},
		"not JSON":      {"tokenizer.json": "{"},
		"a list":        {"tokenizer.json": "[]"},
		"no model":      {"tokenizer.json": "{}"},
		"negative id":   {"tokenizer.json": `{"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}}`},
		"huge id":       {"tokenizer.json": `{"model":{"type":"BPE","vocab":{"a":999999999999},"merges":[]}}`},
		"huge added":    {"tokenizer.json": `{"added_tokens":[{"id":2000000000,"content":"a"}],"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}`},
		"NUL":           {"tokenizer.json": `{"model":{"type":"WordLevel","vocab":{"a\u0000b":0},"unk_token":"a"}}`},
		"config":        {"tokenizer.json": string(good), "tokenizer_config.json": "[]"},
		"eos":           {"tokenizer.json": string(good), "generation_config.json": `{"eos_token_id":"two"}`},
		"template":      {"tokenizer.json": string(good), "chat_template.jinja": "{% for %}"},
		"template list": {"tokenizer.json": string(good), "tokenizer_config.json": `{"chat_template":[1]}`},
		"tool_use": {"tokenizer.json": string(good),
			"tokenizer_config.json": `{"chat_template":[{"name":"tool_use","template":"{% for %}"}]}`},
	} {
		dir := t.TempDir()
		for file, content := range files {
			write(t, dir, file, content)
		}
		_, err := tokenizer.Load(dir)
		require.ErrorIs(t, err, tokenizer.ErrFile, name)
		require.Equal(t, 1, strings.Count(err.Error(), dir), "%s: %v", name, err)
		require.NotContains(t, err.Error(), "Go ", "%s: a type of the program", name)
	}
}

// TestFilesThatCannotBeReadAreNamed: a FIFO would never end, a pointer is not the file.
func TestFilesThatCannotBeReadAreNamed(t *testing.T) {
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "generation_config.json"} {
		for want, place := range map[string]func(string){
			"found a FIFO, expected a regular file": func(path string) { require.NoError(t, unix.Mkfifo(path, 0o600)) },
			"found a Git LFS pointer, expected the file": func(path string) {
				require.NoError(t, os.WriteFile(path, []byte("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 34\n"),
					0o600))
			},
		} {
			dir := t.TempDir()
			if name != "tokenizer.json" {
				copyFile(t, filepath.Join(fixtures, "wordpiece", "tokenizer.json"), filepath.Join(dir, "tokenizer.json"))
			}
			place(filepath.Join(dir, name))
			_, err := tokenizer.Load(dir)
			require.ErrorContains(t, err, filepath.Join(dir, name)+": "+want)
		}
	}
}

// TestEndsAreIdsOrTexts of tokens.
func TestEndsAreIdsOrTexts(t *testing.T) {
	for text, want := range map[string][]int32{`2`: {2}, `"<|eos|>"`: {2}, `["<|eos|>", 1, 2]`: {1, 2}, `null`: nil} {
		dir := t.TempDir()
		copyFile(t, demoModel+"/tokenizer.json", filepath.Join(dir, "tokenizer.json"))
		write(t, dir, "generation_config.json", `{"top_p": NaN, "eos_token_id": `+text+`}`)
		tok := load(t, dir)
		require.Equal(t, want, tok.EOS(), text)
	}
	dir := t.TempDir()
	copyFile(t, demoModel+"/tokenizer.json", filepath.Join(dir, "tokenizer.json"))
	write(t, dir, "generation_config.json", `{"eos_token_id": "no such token"}`)
	_, err := tokenizer.Load(dir)
	require.ErrorContains(t, err, `eos_token_id is "no such token", expected an id or the text of a token`)
}

func TestTemplateOfItsOwnFileWinsAndNamedOnesAreFound(t *testing.T) {
	good, err := os.ReadFile(filepath.Join(fixtures, "wordpiece", "tokenizer.json"))
	require.NoError(t, err)
	dir := t.TempDir()
	write(t, dir, "tokenizer.json", string(good))
	write(t, dir, "tokenizer_config.json", `{"chat_template":[{"name":"rag","template":"rag"},{"name":"default","template":"named"}]}`)
	require.Equal(t, "named", renderOne(t, load(t, dir)))
	write(t, dir, "chat_template.jinja", "own {{ messages[0].content }}")
	require.Equal(t, "own x", renderOne(t, load(t, dir)))
}

func TestToolCallArgumentsReachTheTemplateAsAnObject(t *testing.T) {
	good, err := os.ReadFile(filepath.Join(fixtures, "wordpiece", "tokenizer.json"))
	require.NoError(t, err)
	dir := t.TempDir()
	write(t, dir, "tokenizer.json", string(good))
	write(t, dir, "chat_template.jinja", "{{ messages[0].tool_calls | tojson }}{{ messages[0].content is defined }}")
	tok := load(t, dir)
	calls := []any{
		map[string]any{"type": "function", "id": "1", "function": map[string]any{"name": "f", "arguments": `{"z":1,"a":[2]}`}},
		map[string]any{"function": map[string]any{"name": "g", "arguments": "not json"}},
		map[string]any{"other": true},
	}
	text, err := tok.RenderChat(tokenizer.Chat{Messages: []api.Message{{Role: "assistant", ToolCalls: calls}}})
	require.NoError(t, err)
	require.Equal(t, `[{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": [2]}}}, `+
		`{"function": {"name": "g", "arguments": "not json"}}, {"other": true}]False`, text)
}

func TestManyGoroutinesShareATokenizerUntilItIsClosed(t *testing.T) {
	tok, err := tokenizer.Load(demoModel)
	require.NoError(t, err)
	var group sync.WaitGroup
	for n := range 16 {
		group.Go(func() {
			message := api.Message{Role: "user", Content: strings.Repeat("日本 ok ", n)}
			for range 20 {
				text, err := tok.RenderChat(tokenizer.Chat{Messages: []api.Message{message}})
				if err != nil {
					t.Error(err)
					return
				}
				ids, err := tok.Encode(text, false)
				if err != nil {
					return // closed meanwhile
				}
				if back, err := tok.Decode(ids, false); err == nil && back != text {
					t.Errorf("%q came back as %q", text, back)
				}
			}
		})
	}
	require.NoError(t, tok.Close())
	group.Wait()
	_, err = tok.Encode("a", false)
	require.ErrorIs(t, err, tokenizer.ErrClosed)
	require.NoError(t, tok.Close())
}

func renderOne(t *testing.T, tok *tokenizer.Tokenizer) string {
	t.Helper()
	text, err := tok.RenderChat(tokenizer.Chat{Messages: []api.Message{{Role: "user", Content: "x"}}})
	require.NoError(t, err)
	return text
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
}
