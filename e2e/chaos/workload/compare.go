package workload

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/millrace/millrace/client"
)

// Verdict is the result of a comparison of an answer.
type Verdict string

// All verdicts.
const (
	Whole      Verdict = "whole"
	NoEqual    Verdict = "ended"      // as no_equal_worker, after the beginning of the expected answer
	Lost       Verdict = "lost"       // another error, or no end
	Duplicated Verdict = "duplicated" // every expected token is there, and more
	Missing    Verdict = "missing"    // what is there is in order, but some is not there
	Spliced    Verdict = "spliced"    // begins as expected and continues with other tokens
	Differing  Verdict = "differing"
)

// order lists the verdicts, the best first.
var order = []Verdict{Whole, NoEqual, Lost, Missing, Duplicated, Spliced, Differing}

func better(a, b Verdict) bool { return slices.Index(order, a) < slices.Index(order, b) }

// codeNoEqual is the code of the server's error when no worker with the same bits is left.
const codeNoEqual = "no_equal_worker"

// lost judges an answer that ended with an error.
func lost(a *Answer) (Verdict, error) {
	var said *client.Error
	if errors.As(a.Err, &said) && said.Code == codeNoEqual {
		return NoEqual, a.Err
	}
	return Lost, fmt.Errorf("after %d tokens: %w", a.tokens(), a.Err)
}

// Compare compares an answer with that of an undisturbed run. Text, token ids,
// log probabilities, finish reasons and usage must be equal. The error names the
// difference.
func Compare(expected, found *Answer) (Verdict, error) {
	if found.Err != nil {
		for i := range expected.Choices {
			e, f := expected.Choices[i].Tokens, found.Choices[i].Tokens
			if n := common(e, f); n < len(f) {
				return differs(n), fmt.Errorf("choice %d: token %d is the first that differs, of %d, before the end with an error: %w", i,
					n, len(f), found.Err)
			}
		}
		return lost(found)
	}
	for i := range expected.Choices {
		e, f := &expected.Choices[i], &found.Choices[i]
		switch {
		case slices.Equal(e.Tokens, f.Tokens):
		case within(e.Tokens, f.Tokens):
			return Duplicated, fmt.Errorf("choice %d: found %d tokens, expected %d, which are all among them", i, len(f.Tokens),
				len(e.Tokens))
		case within(f.Tokens, e.Tokens):
			return Missing, fmt.Errorf("choice %d: found %d tokens, expected %d", i, len(f.Tokens), len(e.Tokens))
		default:
			n := common(e.Tokens, f.Tokens)
			return differs(n), fmt.Errorf("choice %d: token %d is the first that differs, of %d", i, n, len(e.Tokens))
		}
		if e.Text != f.Text {
			return Differing, fmt.Errorf("choice %d: the same tokens, but found text %q, expected %q", i, f.Text, e.Text)
		}
		if e.Reasoning != f.Reasoning {
			return Differing, fmt.Errorf("choice %d: the same tokens, but found reasoning %q, expected %q", i, f.Reasoning, e.Reasoning)
		}
		if !slices.Equal(e.Calls, f.Calls) {
			return Differing, fmt.Errorf("choice %d: the same tokens, but found tool calls %q, expected %q", i, f.Calls, e.Calls)
		}
		if e.Finish != f.Finish {
			return Differing, fmt.Errorf("choice %d: found finish_reason %q, expected %q", i, f.Finish, e.Finish)
		}
		if !reflect.DeepEqual(e.Logprobs, f.Logprobs) {
			return Differing, fmt.Errorf("choice %d: the same tokens, but other log probabilities", i)
		}
	}
	if !reflect.DeepEqual(expected.Usage, found.Usage) {
		return Differing, fmt.Errorf("found usage %+v, expected %+v", found.Usage, expected.Usage)
	}
	return Whole, nil
}

// differs returns the verdict on an answer whose first n tokens are as expected.
func differs(n int) Verdict {
	if n > 0 {
		return Spliced
	}
	return Differing
}

func (a *Answer) tokens() (n int) {
	for i := range a.Choices {
		n += len(a.Choices[i].Tokens)
	}
	return n
}

// within reports whether part is whole with some elements left out.
func within(part, whole []int32) bool {
	for _, id := range whole {
		if len(part) > 0 && part[0] == id {
			part = part[1:]
		}
	}
	return len(part) == 0
}

// common returns the length of the common beginning.
func common(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
