package models

import (
	"embed"
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
	dir, err := find(filepath.Join(root, "bin/millrace"), t.TempDir(), model)
	require.NoError(t, err)
	require.Equal(t, beside, dir)
}

func TestWithoutAHomeTheModelIsInATemporaryFolderOfTheUser(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	file := filepath.Join(t.TempDir(), "file") // no user can make a folder in a file
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	for _, cache := range []string{"", file} {
		dir, err := find("/nowhere/bin/millrace", cache, model)
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
	_, err = find("/nowhere/bin/millrace", "", model)
	require.ErrorContains(t, err, "expected a folder that only user")
}

func TestAPackageWithoutItsModelNamesTheMissingFolder(t *testing.T) {
	_, err := find("/opt/millrace/bin/millrace", t.TempDir(), embed.FS{})
	require.ErrorContains(t, err, "found no /opt/millrace/share/millrace/tiny-chat")
	require.ErrorContains(t, err, "--model")
}
