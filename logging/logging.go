// Package logging makes the program's one logger. It is passed on as a value;
// the log of a request carries its id.
package logging

import (
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// Options say what is logged and in which form.
type Options struct {
	Level  string // "trace" .. "error", "disabled"
	Format string // "auto", "console", "json"
}

// Register adds the options to a command's flags.
func (o *Options) Register(f *pflag.FlagSet) {
	f.StringVar(&o.Level, "log-level", "info", "lowest level to log: trace, debug, info, warn, error or disabled")
	f.StringVar(&o.Format, "log-format", "auto", "format of the log: console, json or auto (console on a terminal)")
}

// New logs to w: standard error in the program.
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
		return zerolog.New(zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly}).Level(level).With().Timestamp().Logger(), nil
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger(), nil
}
