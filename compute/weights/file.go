package weights

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"
)

// maxText bounds the text files of a model's folder: the largest, a tokenizer.json, has some tens of megabytes.
const maxText = 256 << 20

// ReadText reads a text file of a model's folder. It refuses what is no regular file before it opens it, since a FIFO would never
// end, and a Git LFS pointer. Faults of the file are *FormatError.
func ReadText(path string) ([]byte, error) {
	f, info, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	if info.Size() > maxText {
		return nil, &FormatError{File: path, Found: fmt.Sprintf("%d bytes", info.Size()), Expected: fmt.Sprintf("%d at most", maxText)}
	}
	text := make([]byte, info.Size())
	if _, err := io.ReadFull(f, text); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if isPointer(text) {
		return nil, pointerFault(path)
	}
	return text, nil
}

// ReadJSON reads a JSON file of a model's folder to v. It takes NaN and the infinities that Python writes, as strings.
// Faults of the file are *FormatError, with what was expected of it.
func ReadJSON(path string, v any, expected string) error {
	text, err := ReadText(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(PythonJSON(text), v); err != nil {
		return &FormatError{File: path, Found: JSONFault(err), Expected: expected}
	}
	return nil
}

// PythonJSON returns a text of Python's json module as JSON, which has no NaN, Infinity and -Infinity: they become strings.
func PythonJSON(text []byte) []byte {
	if !bytes.Contains(text, []byte("NaN")) && !bytes.Contains(text, []byte("Infinity")) {
		return text
	}
	parts := regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?Infinity|NaN`)
	return parts.ReplaceAllFunc(text, func(part []byte) []byte {
		if part[0] == '"' {
			return part
		}
		return fmt.Appendf(nil, "%q", part)
	})
}

// openRegular opens a regular file.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, &FormatError{File: path, Found: fileKind(info.Mode()), Expected: "a regular file"}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	if info, err = f.Stat(); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// fileKind names what is no regular file.
func fileKind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder"
	case m&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return m.Type().String()
}

// OtherFiles says what a folder has that is no checkpoint but could be meant as one; "" for nothing.
func OtherFiles(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case IsGGUF(name):
			return " but " + name + ": the path of a GGUF file is a model by itself"
		case strings.HasPrefix(name, "consolidated") && strings.HasSuffix(name, ".pth"):
			return " but " + name + ": save_pretrained of transformers writes safetensors"
		}
	}
	return ""
}

// cut is what a file that ends too early is, after what was expected.
const cut = ": the file is cut, as by an interrupted download"

// Cut says whether the file ends too early.
func (e *FormatError) Cut() bool { return strings.HasSuffix(e.Expected, cut) }

// isPointer says whether a file is what git leaves in the place of a large file: docs/spec.md of github.com/git-lfs/git-lfs.
func isPointer(begin []byte) bool {
	return bytes.HasPrefix(begin, []byte("version https://git-lfs.github.com/spec/"))
}

func pointerFault(path string) error {
	return &FormatError{File: path, Found: "a Git LFS pointer",
		Expected: `the file that it stands for: "git lfs pull" in its folder downloads it, and "millrace pull OWNER/NAME" the whole model`}
}

// JSONFault says what is wrong with a JSON text, without the names of Go's types.
func JSONFault(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the end in the middle of a value"
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if wrong.Field == "" {
			return article(wrong.Value)
		}
		return article(wrong.Value) + " in " + wrong.Field
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// article writes the name of a kind of JSON value, such as "array" or "number 1.5", with its article.
func article(kind string) string {
	switch kind {
	case "array", "object":
		return "an " + kind
	case "bool":
		return "true or false"
	}
	return "a " + kind
}
