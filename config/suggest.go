package config

import (
	"fmt"
	"maps"
	"slices"
)

// suggest is "; did you mean X?" for the known name nearest to name, the
// first of the alphabet among equals.
func suggest[V any](name string, known map[string]V) string {
	best, bestDistance := "", -1
	for _, k := range slices.Sorted(maps.Keys(known)) {
		if d := distance(name, k); bestDistance < 0 || d < bestDistance {
			best, bestDistance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
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
