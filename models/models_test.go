package models

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// model is a demo model of one file.
var model = fstest.MapFS{DemoName + "/config.json": {Data: []byte("{}")}}

func TestTheModelBesideTheProgramIsTheDemoModel(t *testing.T) {
	root := t.TempDir()
	beside := filepath.Join(root, "share/millrace/tiny-chat")
	require.NoError(t, os.MkdirAll(beside, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(beside, "config.json"), []byte("{}"), 0o644))
	dir, err := find(filepath.Join(root, "bin/millrace"), t.TempDir(), "hash", model)
	require.NoError(t, err)
	require.Equal(t, beside, dir)
}

func TestWithoutAHomeTheModelIsInATemporaryFolderOfTheUser(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	file := filepath.Join(t.TempDir(), "file") // no user can make a folder in a file
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	for _, cache := range []string{"", file} {
		dir, err := find("/nowhere/bin/millrace", cache, "hash", model)
		require.NoError(t, err)
		inside, err := filepath.Rel(temp, dir)
		require.NoError(t, err)
		require.NotContains(t, inside, "..")
		require.FileExists(t, filepath.Join(dir, "config.json"))
	}
	made, err := filepath.Glob(filepath.Join(temp, "millrace-*"))
	require.NoError(t, err)
	require.Len(t, made, 1)
	require.NoError(t, os.Chmod(made[0], 0o777))
	_, err = find("/nowhere/bin/millrace", "", "hash", model)
	require.ErrorContains(t, err, "expected a folder that only user")
}

func TestAPackageWithoutItsModelNamesTheMissingFolder(t *testing.T) {
	_, err := find("/opt/millrace/bin/millrace", t.TempDir(), "hash", embed.FS{})
	require.ErrorContains(t, err, "found no /opt/millrace/share/millrace/tiny-chat")
	require.ErrorContains(t, err, "--model")
}

// TestTheFolderOfTheDemoModelIsNamedByItsContent: a program finds the model of another version by another name.
func TestTheFolderOfTheDemoModelIsNamedByItsContent(t *testing.T) {
	h := sha256.New()
	require.NoError(t, eachFile(demo, func(name string, data []byte) error {
		fmt.Fprintf(h, "%s %d\n", name, len(data))
		h.Write(data)
		return nil
	}))
	require.Equal(t, demoHash, hex.EncodeToString(h.Sum(nil)[:8]))
}
