package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tokenizer/jinja"
)

// Prompt is a rendered chat.
type Prompt struct {
	Text  string
	plain []int // ascending byte offsets: a special token that covers one is text of a user
}

// EncodePrompt returns the ids of a rendered chat. Errors are those of Encode.
func (t *Tokenizer) EncodePrompt(p Prompt) ([]int32, error) { return t.encode(p.Text, false, p.plain) }

// PlainMessages makes special tokens text like any other where a chat's messages, tools and arguments have them. Only
// those that the template writes are special. Without it special tokens are recognized everywhere, as vLLM and
// llama-server do. Call it before any other use of t.
func (t *Tokenizer) PlainMessages() {
	t.plainMessages = true
	first := map[rune]bool{}
	for id, piece := range t.vocab.pieces {
		if t.IsSpecial(int32(id)) && piece != "" {
			r, _ := utf8.DecodeRuneInString(piece)
			t.specials = append(t.specials, piece)
			first[r] = !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsSpace(r)
		}
	}
	slices.SortFunc(t.specials, func(a, b string) int { return len(b) - len(a) })
	for r, marked := range first {
		if marked {
			t.specialFirsts = append(t.specialFirsts, r)
		}
	}
}

// userText returns the offsets in a rendered chat at which special tokens may begin that are text of a user. It renders
// the chat again with a mark before each of them, and compares the two texts. named are the variables that name the
// model's tokens, and given all others.
func (t *Tokenizer) userText(named, given []byte, rendered string, render func(variables []byte) (string, error)) ([]int, error) {
	mark, err := unusedMark(given, rendered)
	if err != nil {
		return nil, err
	}
	// A mark before each possible beginning of a token also finds tokens that a template joins. It changes what
	// a template finds at the beginning of a message, so the second way has marks before whole tokens only.
	for _, marked := range []func(text, mark string) string{t.markFirsts, t.markTokens} {
		variables, err := mapStrings(given, func(text string) string { return marked(text, mark) })
		if err != nil {
			return nil, fmt.Errorf("%w: variables: %w", jinja.ErrTemplate, err)
		}
		text, err := render(joinObjects(named, variables))
		if err != nil {
			continue
		}
		if plain, ok := unmark(text, rendered, mark); ok {
			return plain, nil
		}
	}
	return nil, fmt.Errorf("%w: it reads special tokens in a message, which are text like any other here (--parse-special=false)",
		jinja.ErrTemplate)
}

// unusedMark returns a noncharacter that is in none of the texts.
func unusedMark(given []byte, rendered string) (string, error) {
	lower := bytes.ToLower(given)
	for mark := rune(0xfdd0); mark <= 0xfdef; mark++ {
		if !strings.ContainsRune(rendered, mark) && !bytes.ContainsRune(given, mark) &&
			!bytes.Contains(lower, []byte(escaped(string(mark)))) {
			return string(mark), nil
		}
	}
	return "", fmt.Errorf("%w: found each of the noncharacters U+FDD0 to U+FDEF", ErrText)
}

// escaped is a mark as JSON in ASCII has it.
func escaped(mark string) string {
	r, _ := utf8.DecodeRuneInString(mark)
	return fmt.Sprintf(`\u%04x`, r)
}

// markFirsts puts a mark before each character that begins a special token, and before special tokens that begin with a
// letter or a digit.
func (t *Tokenizer) markFirsts(text, mark string) string {
	var b strings.Builder
	for i, r := range text {
		if slices.Contains(t.specialFirsts, r) || t.specialAt(text[i:]) > 0 {
			b.WriteString(mark)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// markTokens puts a mark before each special token.
func (t *Tokenizer) markTokens(text, mark string) string {
	var b strings.Builder
	for len(text) > 0 {
		n := t.specialAt(text)
		if n > 0 {
			b.WriteString(mark)
		} else {
			_, n = utf8.DecodeRuneInString(text)
		}
		b.WriteString(text[:n])
		text = text[n:]
	}
	return b.String()
}

// specialAt returns the length of the special token that a text begins with, 0 if there is none.
func (t *Tokenizer) specialAt(text string) int {
	for _, s := range t.specials {
		if strings.HasPrefix(text, s) {
			return len(s)
		}
	}
	return 0
}

// unmark returns the places of the marks in the text without them, if that is want.
func unmark(text, want, mark string) (places []int, ok bool) {
	text = strings.ReplaceAll(text, escaped(mark), mark)
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, mark)
		b.WriteString(before)
		if !found {
			return places, b.String() == want
		}
		places = append(places, b.Len())
		text = after
	}
}

// mapStrings changes all strings of a JSON value, keys among them.
func mapStrings(value []byte, change func(string) string) ([]byte, error) {
	var out bytes.Buffer
	for {
		start := bytes.IndexByte(value, '"')
		if start < 0 {
			out.Write(value)
			return out.Bytes(), nil
		}
		end := start + 1
		for end < len(value) && value[end] != '"' {
			if value[end] == '\\' {
				end++
			}
			end++
		}
		end = min(end+1, len(value))
		var text string
		if err := json.Unmarshal(value[start:end], &text); err != nil {
			return nil, err
		}
		changed, err := api.Marshal(change(text))
		if err != nil {
			return nil, err
		}
		out.Write(value[:start])
		out.Write(changed)
		value = value[end:]
	}
}

// joinObjects returns a JSON object with the members of both.
func joinObjects(a, b []byte) []byte {
	a, b = bytes.TrimSpace(a), bytes.TrimSpace(b)
	if len(a) <= len("{}") {
		return b
	}
	if len(b) <= len("{}") {
		return a
	}
	return slices.Concat(a[:len(a)-1], []byte(","), b[1:])
}
