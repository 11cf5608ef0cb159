package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/config"
)

// TestSettingsAreDocumented: docs/settings.md is what the flags say. UPDATE_GOLDEN=1 writes it.
func TestSettingsAreDocumented(t *testing.T) {
	const file = "../../docs/settings.md"
	want := settingsPage(newRoot(nil, os.Stderr))
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o600))
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, want, string(text), "UPDATE_GOLDEN=1 go test ./cmd/millrace -run TestSettingsAreDocumented writes it")
}

// settingsPage is docs/settings.md.
func settingsPage(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(`<!-- Generated from the flags. UPDATE_GOLDEN=1 go test ./cmd/millrace -run TestSettingsAreDocumented writes this file. -->
# Settings
These are the flags of ` + "`millrace serve`" + `. Each flag is also an environment variable and a key of the YAML file that ` + "`--config`" + ` names
(` + "`" + config.DefaultFile + "`" + ` by default, in ` + "`$XDG_CONFIG_HOME/millrace`" + ` if that is set): ` + "`--kv-memory` is `MILLRACE_KV_MEMORY` and `kv-memory:`" + `. A flag takes precedence over
the environment, the environment over the file. An unknown name is an error.

` + "`millrace COMMAND --help`" + ` prints the flags of a command, ` + "`millrace serve --help-all`" + ` all of these.
`)
	serve, _, err := root.Find([]string{"serve"})
	if err != nil {
		return err.Error()
	}
	for _, g := range config.ByTopic(allFlags(serve)) {
		fmt.Fprintf(&b, "\n## %s\n| flag | default | meaning |\n|---|---|---|\n", g.Topic)
		g.Flags.VisitAll(func(f *pflag.Flag) {
			if f.Name == helpAll { // no setting
				return
			}
			value := ""
			if f.DefValue != "" {
				value = "`" + f.DefValue + "`"
			}
			_, meaning := pflag.UnquoteUsage(f)
			fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", f.Name, value, meaning)
		})
	}
	b.WriteString("\n## Commands\n| command | meaning |\n|---|---|\n")
	for _, cmd := range root.Commands() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", cmd.Name(), cmd.Short)
	}
	return b.String()
}

// TestEveryFlagOfServeHasATopic, and every topic has flags that a command has.
func TestEveryFlagOfServeHasATopic(t *testing.T) {
	root := newRoot(nil, os.Stderr)
	known := map[string]bool{"help": true}
	for _, cmd := range root.Commands() {
		allFlags(cmd).VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
		for _, g := range config.ByTopic(allFlags(cmd)) {
			require.False(t, cmd.Name() == "serve" && g.Topic == "", "no topic: %s", g.Flags.FlagUsages())
		}
	}
	var seen []string
	for _, topic := range config.Topics() {
		for _, name := range topic.Flags {
			require.True(t, known[name], "%s has --%s, which no command has", topic.Name, name)
			require.NotContains(t, seen, name)
			seen = append(seen, name)
		}
	}
}

// TestHelpGroupsFlagsByTopic: a flag stands below the name of its topic.
func TestHelpGroupsFlagsByTopic(t *testing.T) {
	var out bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"serve", "--help-all"}, nil, &out, os.Stderr))
	lines := strings.Split(out.String(), "\n")
	below := func(topic, flag string) {
		t.Helper()
		at := slices.Index(lines, topic+":")
		require.Positive(t, at, topic)
		end := at + slices.Index(lines[at:], "")
		require.True(t, slices.ContainsFunc(lines[at:end], func(l string) bool { return strings.Contains(l, "--"+flag+" ") }),
			"%s is not below %s", flag, topic)
	}
	below("Memory", "kv-memory")
	below("Network", "listen")
	below("Security", "api-keys")
	below("Observability", "log-level")
}

// TestTheHelpOfAFlagIsOneLine of at most 160 characters, without a full stop.
func TestTheHelpOfAFlagIsOneLine(t *testing.T) {
	for _, cmd := range newRoot(nil, os.Stderr).Commands() {
		allFlags(cmd).VisitAll(func(f *pflag.Flag) {
			require.NotContains(t, f.Usage, "\n", f.Name)
			require.LessOrEqual(t, len(f.Usage), 160, "--%s of %s: %s", f.Name, cmd.Name(), f.Usage)
			require.NotRegexp(t, `\.$`, f.Usage)
		})
	}
}

// TestHelpListsCommands, those of a command that has some, too.
func TestHelpListsCommands(t *testing.T) {
	for command, sub := range map[string]string{"": "serve ", "keys": "create "} {
		var out bytes.Buffer
		require.Zero(t, run(t.Context(), append(strings.Fields(command), "--help"), nil, &out, os.Stderr))
		require.Regexp(t, `(?m)^Commands:\n(  .*\n)*  `+sub, out.String())
	}
}
