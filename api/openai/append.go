package openai

import (
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/millrace/millrace/api"
)

// The functions below append JSON to a buffer. They run for every token, where reflection would cost
// more than the rest of the encoding.

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. Invalid UTF-8 becomes U+FFFD.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' && c != 0x7f {
				i++
				continue
			}
			dst = appendEscape(append(dst, s[start:i]...), c)
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			dst = append(append(dst, s[start:i]...), "\ufffd"...)
			start = i + size
		case r == '\u2028' || r == '\u2029': // line ends to JavaScript
			dst = append(append(dst, s[start:i]...), `\u202`...)
			dst = append(dst, hexDigits[r&0xf])
			start = i + size
		}
		i += size
	}
	return append(append(dst, s[start:]...), '"')
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
}

// Logprob returns a log probability as JSON can have it. JSON has no infinity, so this is OpenAI's value, -9999, instead.
func Logprob(v float32) float32 {
	if math.IsNaN(float64(v)) || v < -9999 {
		return -9999
	}
	return v
}

func appendLogprob(dst []byte, v float32) []byte {
	return strconv.AppendFloat(dst, float64(Logprob(v)), 'f', -1, 32)
}

func appendInts[T byte | int32](dst []byte, values []T) []byte {
	dst = append(dst, '[')
	for i, v := range values {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(v), 10)
	}
	return append(dst, ']')
}

// appendChatLogprobs appends the logprobs of a chat choice.
func appendChatLogprobs(dst []byte, tokens []api.TokenLogprob) []byte {
	dst = append(dst, `{"content":[`...)
	for i, t := range tokens {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendChatToken(dst, t), `,"top_logprobs":[`...)
		for k, alt := range t.Top {
			if k > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendChatToken(dst, alt), '}')
		}
		dst = append(dst, `]}`...)
	}
	return append(dst, `],"refusal":null}`...)
}

func appendChatToken(dst []byte, t api.TokenLogprob) []byte {
	dst = appendString(append(dst, `{"token":`...), t.Text)
	dst = appendLogprob(append(dst, `,"logprob":`...), t.Logprob)
	return appendInts(append(dst, `,"bytes":`...), t.Bytes)
}

// position is a place in a text: after a number of characters, and after the first bytes of the next one, part[:n].
type position struct {
	chars int
	part  [utf8.UTFMax]byte
	n     int
}

// of returns the number of characters before a token. A character that the token does not continue is broken: it is one U+FFFD.
func (p *position) of(t *api.TokenLogprob) int {
	if p.n > 0 && len(t.Bytes) > 0 && utf8.RuneStart(t.Bytes[0]) {
		p.chars, p.n = p.chars+1, 0
	}
	return p.chars
}

// pass moves the position past a token.
func (p *position) pass(t *api.TokenLogprob) {
	if p.n == 0 && utf8.Valid(t.Bytes) {
		p.chars += utf8.RuneCountInString(t.Text)
		return
	}
	for _, b := range t.Bytes {
		p.part[p.n] = b
		p.n++
		// as the text is made: a broken character is one U+FFFD, and what broke it begins another
		for p.n > 0 && utf8.FullRune(p.part[:p.n]) {
			r, size := utf8.DecodeRune(p.part[:p.n])
			if r == utf8.RuneError && size == 1 && p.n > 1 {
				size = p.n - 1
			}
			p.chars++
			p.n = copy(p.part[:], p.part[size:p.n])
		}
	}
}

// appendCompletionLogprobs appends the logprobs of a plain completion's choice. at is the position of the first token in the choice's
// text. The function moves it past the last one. The offset of a token that is a part of a character is that of the character.
func appendCompletionLogprobs(dst []byte, tokens []api.TokenLogprob, at *position) []byte {
	each := func(name string, one func([]byte, api.TokenLogprob) []byte) {
		dst = append(dst, name...)
		for i, t := range tokens {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = one(dst, t)
		}
		dst = append(dst, ']')
	}
	each(`{"tokens":[`, appendTokenName)
	each(`,"token_logprobs":[`, appendOptionalLogprob)
	each(`,"top_logprobs":[`, appendTop)
	each(`,"text_offset":[`, func(dst []byte, t api.TokenLogprob) []byte {
		dst = strconv.AppendInt(dst, int64(at.of(&t)), 10)
		at.pass(&t)
		return dst
	})
	return append(dst, '}')
}

// appendPromptToken appends a token of a prompt and the likeliest ones in its place, by their ids. The first one has none: null.
func appendPromptToken(dst []byte, t api.TokenLogprob) []byte {
	if math.IsNaN(float64(t.Logprob)) {
		return append(dst, "null"...)
	}
	one := func(t api.TokenLogprob, rank int) {
		dst = strconv.AppendInt(append(dst, '"'), int64(t.Token), 10)
		dst = appendLogprob(append(dst, `":{"logprob":`...), t.Logprob)
		dst = strconv.AppendInt(append(dst, `,"rank":`...), int64(rank), 10)
		dst = append(appendString(append(dst, `,"decoded_token":`...), t.Text), '}')
	}
	dst = append(dst, '{')
	one(t, t.Rank)
	for i, alt := range t.Top {
		if alt.Token != t.Token {
			dst = append(dst, ',')
			one(alt, i+1)
		}
	}
	return append(dst, '}')
}

// appendTokenName appends a token's text. A part of a character becomes "bytes:\xe2\x80", as at OpenAI,
// so that alternatives have different names.
func appendTokenName(dst []byte, t api.TokenLogprob) []byte {
	if utf8.Valid(t.Bytes) {
		return appendString(dst, t.Text)
	}
	dst = append(dst, `"bytes:`...)
	for _, b := range t.Bytes {
		dst = append(dst, '\\', '\\', 'x', hexDigits[b>>4], hexDigits[b&0xf])
	}
	return append(dst, '"')
}

// appendOptionalLogprob appends a log probability, or null for the first token of a prompt, which has
// none (NaN).
func appendOptionalLogprob(dst []byte, t api.TokenLogprob) []byte {
	if math.IsNaN(float64(t.Logprob)) {
		return append(dst, "null"...)
	}
	return appendLogprob(dst, t.Logprob)
}

func appendTop(dst []byte, t api.TokenLogprob) []byte {
	if len(t.Top) == 0 && math.IsNaN(float64(t.Logprob)) {
		return append(dst, "null"...)
	}
	dst = append(dst, '{')
	for i, alt := range t.Top {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendLogprob(append(appendTokenName(dst, alt), ':'), alt.Logprob)
	}
	return append(dst, '}')
}

// appendUsage appends the usage. reasoning is the number of tokens of reasoning, -1 for a model without it.
func appendUsage(dst []byte, u api.Usage, reasoning int) []byte {
	dst = strconv.AppendInt(append(dst, `{"prompt_tokens":`...), int64(u.PromptTokens), 10)
	dst = strconv.AppendInt(append(dst, `,"completion_tokens":`...), int64(u.CompletionTokens), 10)
	dst = strconv.AppendInt(append(dst, `,"total_tokens":`...), int64(u.PromptTokens+u.CompletionTokens), 10)
	dst = strconv.AppendInt(append(dst, `,"prompt_tokens_details":{"cached_tokens":`...), int64(u.CachedTokens), 10)
	if reasoning >= 0 {
		dst = strconv.AppendInt(append(dst, `},"completion_tokens_details":{"reasoning_tokens":`...), int64(reasoning), 10)
	}
	return append(dst, `}}`...)
}
