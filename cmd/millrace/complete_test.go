package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// completions are what a shell is offered for the last of the arguments.
func completions(t *testing.T, args ...string) []string {
	t.Helper()
	code, stdout, stderr := millrace(t, nil, append([]string{cobra.ShellCompNoDescRequestCmd}, args...)...)
	require.Equal(t, 0, code, stderr)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	return lines[:len(lines)-1] // without the directive
}

func TestShellsCompleteValues(t *testing.T) {
	servesDemo(t)
	require.Empty(t, completions(t, "serve", "o"))
	code, _, stderr := millrace(t, nil, "pull", "o/tiny")
	require.Equal(t, 0, code, stderr)
	for _, args := range [][]string{{"serve", ""}, {"serve", "--model", ""}, {"generate", "--model", ""}, {"run", "o"},
		{"models", "remove", ""}, {"explain", ""}} {
		require.Equal(t, []string{"o/tiny"}, completions(t, args...), "%v", args)
	}
	require.Contains(t, completions(t, "serve", "--weights", ""), "int8")
	require.Contains(t, completions(t, "generate", "--kv-type", ""), "int4")
	require.Contains(t, completions(t, "serve", "--log-level", ""), "warn")
	require.Contains(t, completions(t, "serve", "--tool-parser", ""), "hermes")
	require.Contains(t, completions(t, "serve", "--roles", ""), "gateway")
}

// TestCompletedValuesAreAccepted by the flags of serve: a value that is no longer one is an error.
func TestCompletedValuesAreAccepted(t *testing.T) {
	for name, values := range flagValues() {
		for _, v := range values {
			if name == "roles" || name == "backend" && v == "sim" { // these need others beside them
				continue
			}
			code, _, stderr := millrace(t, nil, "serve", "--"+name, v, "--listen", "no address")
			require.Equal(t, 2, code)
			require.NotContains(t, stderr, "--"+name+":", "%s", v)
			require.Contains(t, stderr, "--listen: found")
		}
	}
}

func TestHelpShowsTheMostUsedFlagsAndHelpAllTheRest(t *testing.T) {
	code, brief, stderr := millrace(t, nil, "serve", "--help")
	require.Equal(t, 0, code, stderr)
	require.Equal(t, 12, strings.Count(brief, "\n      --")+strings.Count(brief, "\n  -h, --"), "ten flags, and two of help")
	for _, want := range []string{"--model string", "--listen string", "--kv-memory", "--help-all",
		"millrace serve --help-all shows the other "} {
		require.Contains(t, brief, want)
	}
	require.NotContains(t, brief, "--step-timeout")
	t.Setenv("MILLRACE_LISTEN", "no address")
	code, all, stderr := millrace(t, nil, "serve", "--help-all")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, all, "--step-timeout")
	require.Contains(t, all, "\nScheduling:\n")
	require.NotContains(t, all, "shows the other")
	code, _, stderr = millrace(t, []string{"MILLRACE_HELP_ALL=1"}, "version")
	require.Equal(t, 2, code, "it is no setting")
	require.Contains(t, stderr, "MILLRACE_HELP_ALL")
}
