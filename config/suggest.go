package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/pflag"
)

// FlagError returns the error of parsing a command line. For an unknown flag it names the nearest one of the command.
// Every error is an ErrUsage.
func FlagError(flags *pflag.FlagSet, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || unknown.GetSpecifiedShortnames() != "" {
		return Usagef("%w", err)
	}
	known := map[string]bool{}
	flags.VisitAll(func(f *pflag.Flag) { known["--"+f.Name] = !f.Hidden })
	maps.DeleteFunc(known, func(_ string, shown bool) bool { return !shown })
	return Usagef("%w%s", err, suggest("--"+unknown.GetSpecifiedName(), known))
}

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
