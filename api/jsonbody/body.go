// Package jsonbody has what every interface demands of a JSON body: valid UTF-8, bounded nesting, paired surrogates, and errors in words of
// JSON. It must not know what fields a call has.
package jsonbody

import (
	"bytes"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/millrace/millrace/api"
)

// MaxDepth bounds the nesting of a body.
const MaxDepth = 64

// Check checks what every interface demands of a body before its JSON: valid UTF-8, bounded nesting, and paired surrogates.
func Check(body []byte) error {
	if !utf8.Valid(body) {
		return api.Invalid("", "found bytes that are not UTF-8, expected UTF-8")
	}
	if err := contentsOf(body).check(); err != nil {
		return err
	}
	return checkStrings(body)
}

// checkStrings refuses input that encoding/json accepts: nesting deeper than MaxDepth, and \u escapes of
// an unpaired surrogate, which it would replace with U+FFFD.
func checkStrings(body []byte) error {
	depth, inString := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString && c == '\\':
			n, ok := escapeLen(body[i:])
			if !ok {
				return api.Invalid("", "unpaired surrogate escape at byte %d", i)
			}
			i += n - 1
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > MaxDepth {
				return api.Invalid("", "nested more than %d deep at byte %d", MaxDepth, i)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// escapeLen returns the length of the escape at the start of s, where a surrogate pair counts as one. It
// returns false for an unpaired surrogate. The JSON parser finds malformed escapes.
func escapeLen(s []byte) (int, bool) {
	unit := func(s []byte) uint64 {
		if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
			return 0
		}
		v, err := strconv.ParseUint(string(s[2:6]), 16, 16)
		if err != nil {
			return 0
		}
		return v
	}
	switch hi := unit(s); {
	case hi >= 0xDC00 && hi <= 0xDFFF:
		return 0, false
	case hi >= 0xD800 && hi <= 0xDBFF:
		lo := unit(s[6:])
		return 12, lo >= 0xDC00 && lo <= 0xDFFF
	}
	return 2, true
}

// Snippet returns the first bytes of a value for an error, whole characters.
func Snippet(raw []byte) string {
	const limit = 48
	raw = bytes.TrimSpace(raw)
	if len(raw) <= limit {
		return string(raw)
	}
	cut := limit
	for cut > 0 && !utf8.RuneStart(raw[cut]) {
		cut--
	}
	return string(raw[:cut]) + "..."
}

// ParseInt reads 12, and also 12.0, which some clients send.
func ParseInt(raw []byte) (int64, bool) {
	const digits = 18 // of every number of them an int64
	if small := int64(0); len(raw) <= digits {
		for i, c := range raw {
			if c < '0' || c > '9' {
				break
			}
			if small = small*10 + int64(c-'0'); i == len(raw)-1 {
				return small, true
			}
		}
	}
	if v, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return v, true
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<53 {
		return 0, false
	}
	return int64(f), true
}
