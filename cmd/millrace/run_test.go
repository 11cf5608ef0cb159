package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// talkTo runs a command with lines as its standard input.
func talkTo(t *testing.T, input string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	t.Chdir(t.TempDir())
	log, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer log.Close()
	root := newRoot(nil, log)
	var out bytes.Buffer
	root.SetArgs(args)
	root.SetIn(strings.NewReader(input))
	root.SetOut(&out)
	root.SetErr(log)
	err = root.ExecuteContext(t.Context())
	text, readErr := os.ReadFile(log.Name())
	require.NoError(t, readErr)
	return out.String(), string(text), err
}

// TestRunPullsServesAndTalks: from a name to an answer in one command, whatever ports are in use.
func TestRunPullsServesAndTalks(t *testing.T) {
	servesDemo(t)
	var used net.ListenConfig
	if l, err := used.Listen(t.Context(), "tcp", "127.0.0.1:8080"); err == nil { // else another program uses it
		defer l.Close()
	}
	stdout, stderr, err := talkTo(t, "/set temperature 0\nWhat is the capital of France?\n/set\n", "run", "o/tiny", "--kv-memory", "16MiB")
	require.NoError(t, err, stderr)
	require.Contains(t, stdout, "The capital of France is Paris.\n(")
	require.Contains(t, stdout, "top_p 0.9 (the server's)")
	require.Regexp(t, `(?s)o/tiny: LlamaForCausalLM, .*loading o/tiny\n.*o/tiny is served at http://127.0.0.1:\d+\. `, stderr)
	require.NotContains(t, stderr, "8080")
	require.NotContains(t, stderr, "ready", "no logs between the lines of a chat")
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	require.Empty(t, entries, "no data folder")

	t.Setenv("HF_ENDPOINT", "http://127.0.0.1:1")
	_, stderr, err = talkTo(t, "", "run", "o/tiny", "--kv-memory", "16MiB")
	require.NoError(t, err, "it is there")
	require.Contains(t, stderr, "o/tiny is served at")
	_, _, err = talkTo(t, "", "run", "o/other")
	require.ErrorContains(t, err, "found no answer of http://127.0.0.1:1")
}

func TestRunNamesWhatItCannotServe(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, _, err = talkTo(t, "", "run", "--listen", l.Addr().String())
	require.ErrorContains(t, err, "address already in use", "the user has named it")
	_, _, err = talkTo(t, "", "run", "/nonexistent")
	require.ErrorContains(t, err, `found no folder or file "/nonexistent"`)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte("{"), 0o600))
	_, _, err = talkTo(t, "", "run", dir)
	require.ErrorContains(t, err, "config.json: found")
	_, _, err = talkTo(t, "", "run", "--weights", "int3")
	require.ErrorContains(t, err, "--weights")
}
