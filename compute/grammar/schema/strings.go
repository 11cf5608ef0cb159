package schema

import (
	"errors"
	"regexp/syntax"
	"slices"
	"strings"
)

func (w *rewriter) pattern(s *state, path string, v *node) {
	text, ok := v.str()
	if !ok {
		w.fail(path, "found %s, expected a regular expression", brief(v))
		return
	}
	if why := broken(text); why != nil {
		w.fail(path, "found %s, expected a regular expression: %v", brief(v), why)
		return
	}
	if why := beyond(text); why != "" {
		w.cannot(path, why)
		return
	}
	s.match(text)
}

// broken returns why an expression is none in any dialect. What only some dialects know is left to the engine.
func broken(pattern string) error {
	_, err := syntax.Parse(pattern, syntax.Perl)
	if e, ok := errors.AsType[*syntax.Error](err); ok && slices.Contains([]syntax.ErrorCode{
		syntax.ErrMissingBracket, syntax.ErrMissingParen, syntax.ErrUnexpectedParen, syntax.ErrTrailingBackslash,
		syntax.ErrMissingRepeatArgument,
	}, e.Code) && !backward(pattern) {
		return e
	}
	return nil
}

// match adds a regular expression that strings have to match somewhere.
func (s *state) match(pattern string) {
	if s.out.get("pattern") == nil {
		s.out.set("pattern", valueOf(pattern))
		return
	}
	s.and(objectOf("pattern", valueOf(pattern)))
}

// beyond says why a regular expression cannot be enforced, "" if it can.
func beyond(pattern string) string {
	if !backward(pattern) {
		return ""
	}
	return "found an expression with look-around or a reference to a group, which cannot be enforced"
}

// backward reports whether an expression has look-around or references to groups, outside of its character classes.
func backward(pattern string) bool {
	class := false
	for i := 0; i < len(pattern); i++ {
		rest := pattern[i:]
		switch {
		case rest[0] == '\\':
			if !class && len(rest) > 1 && rest[1] >= '1' && rest[1] <= '9' {
				return true
			}
			i++
		case class:
			class = rest[0] != ']'
		case rest[0] == '[':
			class = true
		case slices.ContainsFunc([]string{"(?=", "(?!", "(?<=", "(?<!"}, func(s string) bool { return strings.HasPrefix(rest, s) }):
			return true
		}
	}
	return false
}

// engineFormats are the formats that the engine knows, and follows.
var engineFormats = []string{"duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}

// The parts of dates and times of RFC 3339 that Python's datetime and JavaScript's Date read: years from 1, days that the month has, and no
// leap seconds, which only some days have.
const (
	year    = `(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])`
	fourth  = `(?:0[48]|[2468][048]|[13579][26])` // a multiple of four but 0, of two digits
	day28   = `(?:0[1-9]|1[0-9]|2[0-8])`
	dates   = `(?:` + year + `-(?:(?:0[1-9]|1[0-2])-` + day28 + `|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)|(?:[0-9]{2}` + fourth + `|` + fourth + `00)-02-29)`
	clock   = `(?:[01][0-9]|2[0-3]):[0-5][0-9]`
	times   = clock + `:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-]` + clock + `)`
	instant = dates + `T` + times
)

// ownFormats are the formats with an expression here.
var ownFormats = map[string]string{"date": dates, "time": times, "date-time": instant}

// format follows the formats that are known. Others are annotations (JSON Schema 2020-12, validation, 7.2.1).
func (w *rewriter) format(s *state, path string, v *node) {
	name, ok := v.str()
	if !ok {
		w.fail(path, "found %s, expected a string", brief(v))
		return
	}
	if expression, ok := ownFormats[name]; ok {
		s.match("^" + expression + "$")
	} else if slices.Contains(engineFormats, name) {
		s.out.set("format", v)
	}
}
