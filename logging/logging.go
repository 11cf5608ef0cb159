// Package logging makes the program's one logger, which is passed as a value. The log lines of a
// request have its id.
//
// It must not know any other package of the program.
package logging

import (
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// Options configure the logger.
type Options struct {
	Level  string // "trace" .. "error", "disabled"
	Format string // "auto", "console", "json"
}

// Register adds the options to a command's flags.
func (o *Options) Register(f *pflag.FlagSet) {
	f.StringVar(&o.Level, "log-level", "info", "lowest level to log: trace, debug, info, warn, error or disabled")
	f.StringVar(&o.Format, "log-format", "auto", "format of the log: console, json or auto (console on a terminal)")
}

// New returns a logger that writes to w, or an error that names the flag at fault.
func New(w *os.File, o Options) (zerolog.Logger, error) {
	level, err := zerolog.ParseLevel(o.Level)
	if err != nil || o.Level == "" {
		return zerolog.Nop(), fmt.Errorf("--log-level: found %q, expected trace, debug, info, warn, error or disabled", o.Level)
	}
	var console bool
	switch o.Format {
	case "auto":
		console = term.IsTerminal(int(w.Fd()))
	case "console":
		console = true
	case "json":
	default:
		return zerolog.Nop(), fmt.Errorf("--log-format: found %q, expected auto, console or json", o.Format)
	}
	if console {
		out := zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, FormatPrepare: forPeople, FieldsExclude: digests()}
		return zerolog.New(out).Level(level).With().Timestamp().Logger(), nil
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger(), nil
}
