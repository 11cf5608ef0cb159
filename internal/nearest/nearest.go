// Package nearest finds the names that are nearest to one that is not known, for error messages. It must not know what they name.
package nearest

import (
	"cmp"
	"slices"
)

// Names returns up to n of the known names, by their edit distance to name, in alphabetical order among equals.
func Names(name string, known []string, n int) []string {
	sorted := slices.SortedFunc(slices.Values(known), func(a, b string) int {
		return cmp.Or(distance(name, a)-distance(name, b), cmp.Compare(a, b))
	})
	return sorted[:min(n, len(sorted))]
}

// distance is the edit distance of two strings: insertions, deletions and
// substitutions of bytes (Levenshtein, one row of the table at a time).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j]+1, row[j+1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
