package detok_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/detok"
)

// letters is a byte-level vocabulary of all bytes and a few longer pieces.
type letters struct{ pieces []string }

func newLetters(longer ...string) letters {
	var l letters
	for b := range 256 {
		l.pieces = append(l.pieces, string([]byte{byte(b)}))
	}
	l.pieces = append(l.pieces, longer...)
	return l
}

func (l letters) TokenBytes(id int32) []byte {
	if id < 0 || int(id) >= len(l.pieces) {
		return nil
	}
	return []byte(l.pieces[id])
}
func (letters) IsSpecial(int32) bool { return false }
func (letters) IsByte(int32) bool    { return false }
func (letters) ByteLevel() bool      { return true }

// Decode is independent of the stream: the runes of the joined bytes, each broken beginning of a
// character one U+FFFD.
func (l letters) Decode(ids []int32, _ bool) (string, error) {
	var raw strings.Builder
	for _, id := range ids {
		raw.Write(l.TokenBytes(id))
	}
	return lossy(raw.String()), nil
}

// lossy replaces bytes by the table of well-formed sequences (The Unicode Standard, table 3-7).
func lossy(raw string) string {
	var out strings.Builder
	for len(raw) > 0 {
		need, low, high := 0, byte(0x80), byte(0xBF)
		switch b := raw[0]; {
		case b < 0x80:
		case b >= 0xC2 && b <= 0xDF:
			need = 1
		case b >= 0xE0 && b <= 0xEF:
			need = 2
		case b >= 0xF0 && b <= 0xF4:
			need = 3
		default:
			need = -1
		}
		switch raw[0] {
		case 0xE0:
			low = 0xA0
		case 0xED:
			high = 0x9F
		case 0xF0:
			low = 0x90
		case 0xF4:
			high = 0x8F
		}
		n := 1
		for n <= need && n < len(raw) && raw[n] >= low && raw[n] <= high {
			n, low, high = n+1, 0x80, 0xBF
		}
		if n == need+1 {
			out.WriteString(raw[:n])
		} else {
			out.WriteString("\ufffd")
		}
		raw = raw[n:]
	}
	return out.String()
}

// cutAtStop is the rule of Options.Stop on a whole text. It returns the stop string that ended the text, "" if none did.
func cutAtStop(text string, stops []string, include bool) (cut, by string) {
	for end := range len(text) + 1 {
		longest := ""
		for _, stop := range stops {
			if utf8.ValidString(stop) && strings.HasSuffix(text[:end], stop) && len(stop) > len(longest) {
				longest = stop
			}
		}
		if longest != "" && include {
			return text[:end], longest
		}
		if longest != "" {
			return text[:end-len(longest)], longest
		}
	}
	return text, ""
}

func idsOf(text string) []int32 {
	ids := make([]int32, len(text))
	for i := range len(text) {
		ids[i] = int32(text[i])
	}
	return ids
}

func TestStopStringEndsTheTextBeforeItself(t *testing.T) {
	for _, c := range []struct {
		text  string
		stops []string
		want  string
	}{
		{"aaab!", []string{"aab"}, "a"},
		{"abababc", []string{"ababc"}, "ab"},
		{"one two three", []string{"two", "one t"}, ""},
		{"xabc", []string{"abc", "b"}, "xa"},        // "b" is complete first
		{"xabc", []string{"bc", "abc"}, "x"},        // complete at once: the longer
		{"日本語です", []string{"語で"}, "日本"},             // characters of three bytes
		{"日本語です", []string{"日本人", "です"}, "日本語"},     // a beginning that continues otherwise
		{"a\nb\n\nc", []string{"\n\n", ""}, "a\nb"}, // empty ones are ignored
		{"ab", []string{"abc"}, "ab"},               // held back to the end
		{"stop", []string{"stop"}, ""},
		{"", []string{"x"}, ""},
	} {
		for _, include := range []bool{false, true} {
			want, by := cutAtStop(c.text, c.stops, include)
			if !include {
				require.Equal(t, c.want, want, "%q", c.text) // the test's own rule
			}
			text, stopped := stream(t, newLetters(), detok.Options{Stop: c.stops, IncludeStop: include}, idsOf(c.text))
			require.Equal(t, want, text, "%q %q", c.text, c.stops)
			require.Equal(t, by != "", stopped)
			s := detok.New(newLetters(), detok.Options{Stop: c.stops, IncludeStop: include})
			for _, id := range idsOf(c.text) {
				s.Push(id)
			}
			require.Equal(t, by, s.StopString())
		}
	}
}

func TestTextIsHeldOnlyWhileItMayBeginAStopString(t *testing.T) {
	s := detok.New(newLetters("ab", "abx"), detok.Options{Stop: []string{"abc"}})
	for _, step := range []struct {
		id   int32
		want string
	}{{'x', "x"}, {'a', ""}, {'b', ""}, {'a', "ab"}, {'z', "az"}, {256, ""}, {257, "ababx"}, {'a', ""}, {'b', ""}} {
		text, stopped := s.Push(step.id)
		require.False(t, stopped)
		require.Equal(t, step.want, text)
	}
	text, stopped := s.Push('c')
	require.True(t, stopped)
	require.Empty(t, text)
	text, stopped = s.Push('d')
	require.True(t, stopped)
	require.Empty(t, text)
	require.Empty(t, s.Flush())
}

// FuzzStopStrings streams ids (one per byte of raw; tokens of several characters from 0xF8 on)
// against a search in the whole text.
func FuzzStopStrings(f *testing.F) {
	f.Add([]byte("aaab"), "aab", "b", false)
	f.Add([]byte("\xe6\x97\xa5\xe6\x9c\xac\xe6"), "日本", "\ufffd", true)
	f.Add([]byte("ab\xf8\xf9ab\xfa"), "abab", "ba", false)
	f.Add([]byte("\xe6\x97\xff\xe6"), "x", "", false)
	f.Add([]byte("\x80"), "\xbd0", "0", true) // not UTF-8: would cut U+FFFD in two
	l := newLetters("abab", "日本\xe6", "\x97\xa5b", "\xf0\x9f", "\x91\xa9\u200d", "ba", "aaa", " ")
	f.Fuzz(func(t *testing.T, raw []byte, stop1, stop2 string, include bool) {
		ids := make([]int32, len(raw))
		for i, b := range raw {
			ids[i] = int32(b)
			if b >= 0xF8 {
				ids[i] = 256 + int32(b) - 0xF8
			}
		}
		stops := []string{stop1, stop2}
		whole, err := l.Decode(ids, false)
		require.NoError(t, err)
		want, _ := cutAtStop(whole, stops, include)
		text, _ := stream(t, l, detok.Options{Stop: stops, IncludeStop: include}, ids)
		require.Equal(t, want, text, "%q, stops %q", whole, stops)
	})
}
