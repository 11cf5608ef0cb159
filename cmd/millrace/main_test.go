package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// millrace runs a command line in an empty folder and an environment of its own.
func millrace(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	t.Chdir(t.TempDir())
	log, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer log.Close()
	var out bytes.Buffer
	code = run(t.Context(), args, environ, &out, log)
	text, err := os.ReadFile(log.Name())
	require.NoError(t, err)
	return code, out.String(), string(text)
}

func TestExitCodesTellUsageFromFailure(t *testing.T) {
	for _, tt := range []struct {
		args    []string
		environ []string
		code    int
		stderr  string
	}{
		{args: []string{"version"}},
		{args: []string{"serv"}, code: 2, stderr: `millrace: unknown command "serv" for "millrace"`},
		{args: []string{"serve", "--kv-memroy=2GiB"}, code: 2, stderr: "millrace: unknown flag: --kv-memroy; did you mean --kv-memory?\n"},
		{args: []string{"version", "-x"}, code: 2, stderr: "millrace: unknown shorthand flag: 'x' in -x\n"},
		{args: []string{"version", "x"}, code: 2, stderr: `millrace: unknown command "x" for "millrace version"` + "\n"},
		{args: []string{"version"}, environ: []string{"MILLRACE_LOGLEVEL=debug"}, code: 2,
			stderr: "millrace: unknown environment variable MILLRACE_LOGLEVEL; did you mean MILLRACE_LOG_LEVEL?\n"},
		{args: []string{"version", "--log-level", "loud"}, code: 2,
			stderr: `millrace: --log-level: found "loud", expected trace, debug, info, warn, error or disabled` + "\n"},
		{args: []string{"request", "s"}, code: 2, stderr: "millrace: accepts 2 arg(s), received 1\n"},
		{args: []string{"request", "s", "[]", "--stream"}, code: 2, stderr: "millrace: --stream: the request is no JSON object\n"},
		{args: []string{"request", "s", "{}", "--nats", "nats://127.0.0.1:1"}, code: 1,
			stderr: "millrace: nats://127.0.0.1:1: nats: no servers available for connection\n"},
	} {
		code, _, stderr := millrace(t, tt.environ, tt.args...)
		require.Equal(t, tt.code, code, "%v: %s", tt.args, stderr)
		require.Contains(t, stderr, tt.stderr)
		require.LessOrEqual(t, bytes.Count([]byte(stderr), []byte("\n")), 1, "one line: %s", stderr)
	}
}

func TestVersionPrintsOneJSONObject(t *testing.T) {
	code, stdout, stderr := millrace(t, nil, "version", "--json")
	require.Equal(t, 0, code, stderr)
	var v map[string]string
	require.NoError(t, json.Unmarshal([]byte(stdout), &v))
	require.Equal(t, version, v["version"])
	require.Equal(t, commit, v["commit"])
	_, stdout, _ = millrace(t, nil, "version")
	require.Contains(t, stdout, "millrace "+version+" (commit "+commit+", go")
}

func TestEveryCommandExplainsItself(t *testing.T) {
	root := newRoot(nil, os.Stderr)
	for _, cmd := range root.Commands() {
		require.NotEmpty(t, cmd.Short, cmd.Name())
		require.NotNil(t, cmd.RunE, "%s: failures are marked in RunE only", cmd.Name())
		require.NotNil(t, cmd.Args, "%s says which arguments it takes", cmd.Name())
		code := run(context.Background(), []string{cmd.Name(), "--help"}, nil, &bytes.Buffer{}, os.Stderr)
		require.Equal(t, 0, code)
	}
}

func TestWhatHasNothingToEndInOrderEndsAtTheFirstSignal(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	signal, measuring := errors.New("a signal"), make(chan struct{})
	defer close(measuring)
	err := atOnce(ctx, func() error {
		cancel(signal)
		<-measuring
		return nil
	})
	require.ErrorIs(t, err, signal)
	require.ErrorIs(t, atOnce(t.Context(), func() error { return signal }), signal)
}
