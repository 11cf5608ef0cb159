package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAnswersOfGeneratedSchemasAreValid draws from fewer schemas than the command.
func TestAnswersOfGeneratedSchemasAreValid(t *testing.T) {
	out := &logged{t}
	require.NoError(t, run([]string{"--model", "../../models/tiny-chat", "--generated", "60", "--answers", "2", "--tokens", "300"}, out))
}

// TestMissesAreFound: an instance that is accepted and should not be, and the other way round.
func TestMissesAreFound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "schemas.json")
	require.NoError(t,
		os.WriteFile(path,
			[]byte(`[{"name":"a","schema":{"type":"integer"},"tests":[{"data":1,"valid":false},{"data":"x","valid":true},{"data":2,"valid":true}]}]`), 0o600))
	err := run([]string{"--model", "../../models/tiny-chat", "--generated", "0", "--schemas", path}, &logged{t})
	require.ErrorIs(t, err, errMisses)
	require.ErrorContains(t, err, "2")
}

type logged struct{ t *testing.T }

func (l *logged) Write(p []byte) (int, error) {
	l.t.Logf("%s", p)
	return len(p), nil
}
