package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestManualPagesNameEveryCommandAndItsFlags(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	root := newRoot(nil, os.Stderr)
	root.SetArgs([]string{"man", dir})
	require.NoError(t, root.Execute())
	for _, cmd := range newRoot(nil, os.Stderr).Commands() {
		if cmd.Hidden {
			continue
		}
		require.FileExists(t, filepath.Join(dir, "millrace-"+cmd.Name()+".1"))
	}
	page, err := os.ReadFile(filepath.Join(dir, "millrace-serve.1"))
	require.NoError(t, err)
	require.Contains(t, string(page), `--kv-memory`)
	require.NoFileExists(t, filepath.Join(dir, "millrace-man.1"))
}
