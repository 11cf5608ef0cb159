package grammar

import (
	"fmt"
	"regexp/syntax"
)

// maxSpaces is what an unbounded repetition of white space becomes.
const maxSpaces = 32

// ParseWhiteSpace reads a regular expression of the white space between the parts of JSON. Repetitions without an end get one, so that
// an answer cannot be white space up to its token limit. The result is "" for an expression that allows no white space at all.
func ParseWhiteSpace(expression string) (string, error) {
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return "", fmt.Errorf("found %.60q, expected a regular expression: %w", expression, err)
	}
	if err := bound(parsed); err != nil {
		return "", fmt.Errorf("found %.60q, expected an expression of white space only: %w", expression, err)
	}
	if parsed.Op == syntax.OpEmptyMatch || parsed.Op == syntax.OpRepeat && parsed.Max == 0 {
		return "", nil
	}
	return parsed.String(), nil
}

// bound gives repetitions a largest number, and refuses what JSON does not take for white space.
func bound(r *syntax.Regexp) error {
	switch r.Op {
	case syntax.OpStar, syntax.OpPlus:
		least := 0
		if r.Op == syntax.OpPlus {
			least = 1
		}
		r.Op, r.Min, r.Max = syntax.OpRepeat, least, maxSpaces
	case syntax.OpRepeat:
		if r.Max < 0 || r.Max > maxSpaces {
			r.Max = max(r.Min, maxSpaces)
		}
	case syntax.OpLiteral:
		for _, c := range r.Rune {
			if !isSpaceRune(c) {
				return fmt.Errorf("it allows %q", c)
			}
		}
	case syntax.OpCharClass:
		for i := 0; i < len(r.Rune); i += 2 {
			for c := r.Rune[i]; c <= r.Rune[i+1]; c++ {
				if !isSpaceRune(c) && c != '\f' { // \s has it
					return fmt.Errorf("it allows %q", c)
				}
			}
		}
		r.Rune = withoutFormFeed(r.Rune)
	case syntax.OpEmptyMatch, syntax.OpCapture, syntax.OpQuest, syntax.OpConcat, syntax.OpAlternate:
	default:
		return fmt.Errorf("it has %s", r)
	}
	for _, sub := range r.Sub {
		if err := bound(sub); err != nil {
			return err
		}
	}
	return nil
}

func isSpaceRune(c rune) bool { return c < 128 && isSpace(byte(c)) }

// withoutFormFeed returns the ranges of a class of white space without the form feed, which JSON does not have.
func withoutFormFeed(ranges []rune) (out []rune) {
	for i := 0; i < len(ranges); i += 2 {
		for c := ranges[i]; c <= ranges[i+1]; c++ {
			if c != '\f' {
				out = append(out, c, c)
			}
		}
	}
	return out
}
