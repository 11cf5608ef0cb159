package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/nearest"
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

// suggest is "; did you mean X?" for the known name nearest to name.
func suggest[V any](name string, known map[string]V) string {
	best := nearest.Names(name, slices.Collect(maps.Keys(known)), 1)
	if len(best) == 0 {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best[0])
}
