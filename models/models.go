// Package models holds the demo model, so that the program answers without
// any file beside it. It must not know how a model is loaded.
package models

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// DemoName is the demo model's name in the API.
const DemoName = "tiny-chat"

//go:embed tiny-chat/config.json tiny-chat/generation_config.json tiny-chat/model.safetensors
//go:embed tiny-chat/special_tokens_map.json tiny-chat/tokenizer.json tiny-chat/tokenizer_config.json
var demo embed.FS

// Demo returns the directory of the demo model. It is written to the user's
// cache on first use, since weights are mapped from files; the directory's
// name has the content's hash, and it appears at once and whole.
func Demo() (dir string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	hash, err := contentHash()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(cache, "millrace", hash, DemoName)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := extract(dir); err != nil {
		return "", fmt.Errorf("demo model: %w", err)
	}
	return dir, nil
}

func contentHash() (string, error) {
	h := sha256.New()
	err := eachFile(func(name string, data []byte) error {
		fmt.Fprintf(h, "%s %d\n", name, len(data))
		h.Write(data)
		return nil
	})
	return hex.EncodeToString(h.Sum(nil)[:8]), err
}

// extract writes the files beside dir and renames them into place. Losing the
// race against another process is fine: it wrote the same.
func extract(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), "extract-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp) //nolint:errcheck // only what was left over
	err = eachFile(func(name string, data []byte) error {
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

func eachFile(f func(name string, data []byte) error) error {
	entries, err := demo.ReadDir(DemoName)
	if err != nil {
		return err
	}
	for _, e := range entries {
		data, err := demo.ReadFile(DemoName + "/" + e.Name())
		if err != nil {
			return err
		}
		if err := f(e.Name(), data); err != nil {
			return err
		}
	}
	return nil
}
