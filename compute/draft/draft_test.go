package draft

import (
	"slices"
	"testing"
)

func TestGuessesAreWhatFollowedTheLastTime(t *testing.T) {
	for _, c := range []struct {
		name         string
		tokens, want []int32
	}{
		{"nothing yet", nil, nil},
		{"too short", []int32{1, 2, 3}, nil},
		{"no repetition", []int32{1, 2, 3, 4, 5, 6}, nil},
		{"two tokens are too few", []int32{1, 2, 9, 8, 1, 2}, nil},
		{"once", []int32{1, 2, 3, 4, 5, 6, 7, 1, 2, 3}, []int32{4, 5, 6}},
		{"the last of two", []int32{1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 8, 1, 2, 3}, []int32{6, 7, 8}},
		{"the end", []int32{0, 1, 2, 3, 4, 1, 2, 3}, []int32{4, 1, 2}},
		{"goes round", []int32{7, 7, 7, 7}, []int32{7, 7, 7}},
		{"goes round by two", []int32{1, 2, 1, 2, 1}, []int32{2, 1, 2}},
	} {
		var d Drafter
		if got := d.Guess(c.tokens, 3); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, expected %v", c.name, got, c.want)
		}
	}
}

// guesses are the lengths of n calls of Guess, right of which are right.
func guesses(d *Drafter, n, right int) (lengths []int) {
	tokens := []int32{5, 5, 5, 5}
	for range n {
		g := len(d.Guess(tokens, 15))
		lengths = append(lengths, g)
		d.Learn(g, min(g, right))
	}
	return lengths
}

func TestGuessesGrowWhileTheyAreRightAndPauseWhileTheyAreWrong(t *testing.T) {
	var d Drafter
	for _, c := range []struct {
		n, right int
		want     []int
	}{
		{4, 15, []int{3, 7, 15, 15}},
		{2, 4, []int{15, 5}},
		{12, 0, []int{5, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0}},
	} {
		if got := guesses(&d, c.n, c.right); !slices.Equal(got, c.want) {
			t.Errorf("%d right: %v, expected %v", c.right, got, c.want)
		}
	}
	count := 0
	for _, n := range guesses(&d, 10_000, 0) {
		count += n
	}
	if count < 100 || count > 200 {
		t.Errorf("%d wrong guesses in 10000 steps, expected one in %d", count, restMost+1)
	}
}

func BenchmarkGuess(b *testing.B) {
	tokens := make([]int32, window)
	for i := range tokens {
		tokens[i] = int32(i)
	}
	var d Drafter
	for b.Loop() {
		d.Guess(tokens, 7)
	}
}
