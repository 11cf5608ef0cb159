// Package models finds the demo model, so that the program answers without a model of the user. The model is beside the
// program or a part of it. The package must not know how a model is loaded.
package models

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// DemoName is the demo model's name in the API.
const DemoName = "tiny-chat"

// share is the folder of the demo model, relative to the folder of the program. Packages have it there.
const share = "../share/millrace/" + DemoName

// Demo returns the directory of the demo model: the one beside the program, or else the one inside it, written to the
// user's cache on first use, since weights are mapped from files.
func Demo() (dir string, err error) {
	program, err := os.Executable()
	if err != nil { // without /proc, as in a bare chroot
		if program, err = exec.LookPath(os.Args[0]); err != nil {
			return "", fmt.Errorf("demo model: %w", err)
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = ""
	}
	return find(program, cache, demoHash, demo)
}

// demoHash is the contentHash of the demo model. To compute it takes a tenth of a start.
const demoHash = "43fda855aef4c420"

// find looks beside the program first. The files, with their hash, are those inside the program; there may be none.
func find(program, cache, hash string, files fs.FS) (dir string, err error) {
	beside := filepath.Join(filepath.Dir(program), share)
	if _, err := os.Stat(filepath.Join(beside, "config.json")); err == nil {
		return beside, nil
	}
	if _, err := fs.Stat(files, DemoName); errors.Is(err, fs.ErrNotExist) {
		return "",
			fmt.Errorf("demo model: found no %s, expected it where the package put it: install all of the package, or name a model with --model", beside)
	}
	if cache != "" {
		if dir, err = extracted(filepath.Join(cache, "millrace", hash), files); err == nil {
			return dir, nil
		}
	}
	// A user without a home, as in a container.
	temp := filepath.Join(os.TempDir(), fmt.Sprintf("millrace-%d", os.Getuid()))
	if err := private(temp); err != nil {
		return "", fmt.Errorf("demo model: %w", err)
	}
	if dir, err = extracted(filepath.Join(temp, hash), files); err != nil {
		return "", fmt.Errorf("demo model: %w", err)
	}
	return dir, nil
}

// private makes a folder that only this user may write to. One that another user made is an error.
func private(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(owner.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s: found %s of another user, expected a folder that only user %d may write to", dir, info.Mode(), os.Getuid())
	}
	return nil
}

// extracted returns the folder of the model in parent, whose name has the hash of the content. The folder appears at once
// and whole.
func extracted(parent string, files fs.FS) (dir string, err error) {
	dir = filepath.Join(parent, DemoName)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	return dir, extract(dir, files)
}

// extract writes the files beside dir and renames them into place. Losing the
// race against another process is fine: it wrote the same.
func extract(dir string, files fs.FS) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), "extract-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp) //nolint:errcheck // only what was left over
	err = eachFile(files, func(name string, data []byte) error {
		return os.WriteFile(filepath.Join(temp, name), data, 0o644)
	})
	if err != nil {
		return err
	}
	if err := os.Rename(temp, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func eachFile(files fs.FS, f func(name string, data []byte) error) error {
	entries, err := fs.ReadDir(files, DemoName)
	if err != nil {
		return err
	}
	for _, e := range entries {
		data, err := fs.ReadFile(files, DemoName+"/"+e.Name())
		if err != nil {
			return err
		}
		if err := f(e.Name(), data); err != nil {
			return err
		}
	}
	return nil
}
