package packed

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const sumSuffix = ".content"

// sumPath is the file of a key's sum, see Path.
func sumPath(folder, name string, key Key) string {
	return filepath.Join(folder, fmt.Sprintf("%s-%x%s", name, key[:8], sumSuffix))
}

// Sum reads what WriteSum kept under a key; "" where there is no such file, or one of another
// key.
func Sum(folder, name string, key Key) string {
	text, err := os.ReadFile(sumPath(folder, name, key))
	if err != nil {
		return ""
	}
	sum, ok := strings.CutPrefix(string(text), hex.EncodeToString(key[:])+" ")
	sum, whole := strings.CutSuffix(sum, "\n")
	if !ok || !whole || len(sum) != 2*len(key) {
		return ""
	}
	return sum
}

// WriteSum keeps a sum, of SHA-256 in hexadecimal, under a key. The file is complete before it
// has its name; those of the same name with another key are removed.
func WriteSum(folder, name string, key Key, sum string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(folder, name+"-*.tmp")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%x %s\n", key, sum)
	err = errors.Join(err, f.Sync(), f.Close())
	path := sumPath(folder, name, key)
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return removeOthers(folder, path, name, sumSuffix)
}
