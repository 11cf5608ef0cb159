package draft

import (
	"slices"
	"testing"
)

func TestDraftsAreTheTokensThatFollowedTheLastTime(t *testing.T) {
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
		{"a loop", []int32{7, 7, 7, 7}, []int32{7, 7, 7}},
		{"a loop of two", []int32{1, 2, 1, 2, 1}, []int32{2, 1, 2}},
	} {
		var d Drafter
		if got := d.Draft(c.tokens, 3); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, expected %v", c.name, got, c.want)
		}
	}
}

// drafts returns the lengths of n drafts, of which at most accepted tokens each are accepted.
func drafts(d *Drafter, n, accepted int) (lengths []int) {
	tokens := []int32{5, 5, 5, 5}
	for range n {
		g := len(d.Draft(tokens, 15))
		lengths = append(lengths, g)
		d.Learn(g, min(g, accepted))
	}
	return lengths
}

func TestDraftsGrowWhileTheyAreAcceptedAndPauseWhileTheyAreNot(t *testing.T) {
	var d Drafter
	for _, c := range []struct {
		n, accepted int
		want        []int
	}{
		{4, 15, []int{3, 7, 15, 15}},
		{2, 4, []int{15, 5}},
		{12, 0, []int{5, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0}},
	} {
		if got := drafts(&d, c.n, c.accepted); !slices.Equal(got, c.want) {
			t.Errorf("%d accepted: %v, expected %v", c.accepted, got, c.want)
		}
	}
	count := 0
	for _, n := range drafts(&d, 10_000, 0) {
		count += n
	}
	if count < 100 || count > 200 {
		t.Errorf("%d draft tokens in 10000 steps, expected one in %d", count, longestPause+1)
	}
}

func BenchmarkDraft(b *testing.B) {
	tokens := make([]int32, window)
	for i := range tokens {
		tokens[i] = int32(i)
	}
	var d Drafter
	for b.Loop() {
		d.Draft(tokens, 7)
	}
}
