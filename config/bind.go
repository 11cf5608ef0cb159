// Package config reads a command's settings from its flags, the environment
// and a YAML file, in this order of precedence. The flags are the one list of
// settings: flag --kv-memory is the variable MILLRACE_KV_MEMORY and the YAML
// key kv-memory, with the same text and the same default. It must not know what a setting
// does.
package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// EnvPrefix begins every environment variable that Bind reads.
const EnvPrefix = "MILLRACE_"

// FileFlag names the flag with the path of the YAML file.
const FileFlag = "config"

// HelpAllFlag names the flag that shows all flags of a command. It is no setting.
const HelpAllFlag = "help-all"

// FileName is the name of the YAML file in the user's folder of settings, which is read if no other file is named. A file of this
// name in the working directory is not: whoever made that folder would decide which model is served, for whom and where.
const FileName = "millrace.yaml"

// DefaultFile is the path of the user's YAML file as people write it.
const DefaultFile = "~/.config/millrace/" + FileName

// ErrUsage marks an error of the command line, the environment or the file.
var ErrUsage = errors.New("usage")

// Usagef is an error of usage: the text without ErrUsage's own.
func Usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

type usageError struct{ err error }

func (e *usageError) Error() string        { return e.err.Error() }
func (e *usageError) Unwrap() error        { return e.err }
func (e *usageError) Is(target error) bool { return target == ErrUsage }

// setting is a value for a flag and the place that it comes from.
type setting struct {
	flag, value string
	origin      string // "MILLRACE_LISTEN", "millrace.yaml:3: listen"
}

// Bind sets the flags of cmd that the command line does not set, from environ ("KEY=value", as
// os.Environ) or else from the YAML file. A variable or key that no command has is an error that
// names the nearest known one. Bind ignores settings of other commands. Every error is an
// ErrUsage.
func Bind(cmd *cobra.Command, environ []string) error {
	known := flagNames(cmd.Root())

	fromEnv, err := readEnv(environ, known)
	if err != nil {
		return err
	}
	// The environment first: it may name the file.
	if err := apply(cmd.Flags(), fromEnv); err != nil {
		return err
	}

	fromFile, err := readFile(cmd, environ, known)
	if err != nil {
		return err
	}
	return apply(cmd.Flags(), fromFile)
}

// apply sets what is not set yet; a flag that it sets counts as changed.
func apply(flags *pflag.FlagSet, settings []setting) error {
	for _, s := range settings {
		f := flags.Lookup(s.flag)
		if f == nil || f.Changed {
			continue
		}
		if err := flags.Set(s.flag, s.value); err != nil {
			return Usagef("%s: %q: %w", s.origin, s.value, reason(err))
		}
	}
	return nil
}

// reason is the cause of a pflag error, whose own text repeats flag and value.
func reason(err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return errors.Unwrap(invalid)
	}
	return err
}

// flagNames lists the flags of cmd and all commands below it, but not those
// that make no sense as a setting.
func flagNames(cmd *cobra.Command) map[string]bool {
	names := map[string]bool{}
	add := func(f *pflag.Flag) {
		if f.Name != "help" && f.Name != HelpAllFlag && f.Name != "version" {
			names[f.Name] = true
		}
	}
	cmd.PersistentFlags().VisitAll(add)
	cmd.LocalFlags().VisitAll(add)
	for _, sub := range cmd.Commands() {
		for name := range flagNames(sub) {
			names[name] = true
		}
	}
	return names
}

func envName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
