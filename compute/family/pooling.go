package family

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// Pooling is what the files of sentence-transformers beside a checkpoint say of the vector of a text.
type Pooling struct {
	Mode      string // "last" or "mean"
	Normalize bool   // the vector has length 1
	Named     bool   // there are such files
	Problem   string // what they ask for that is not served; "": nothing
}

// ReadPooling reads modules.json and the configuration of its pooling module in a model's directory. Without them the vector is the
// normalized hidden state of the last token. Faults are *weights.FormatError.
func ReadPooling(dir string) (Pooling, error) {
	var modules []struct {
		Path string `json:"path"`
		Type string `json:"type"`
	}
	p := Pooling{Mode: "last", Normalize: true}
	if weights.IsGGUF(dir) { // one file is the whole model
		return p, nil
	}
	found, err := readJSON(filepath.Join(dir, "modules.json"), &modules)
	if err != nil || !found {
		return p, err
	}
	p.Named, p.Normalize = true, false
	for _, m := range modules {
		switch kind := m.Type[strings.LastIndexByte(m.Type, '.')+1:]; kind {
		case "Transformer":
		case "Normalize":
			p.Normalize = true
		case "Pooling":
			if !filepath.IsLocal(m.Path) {
				return p, &weights.FormatError{File: filepath.Join(dir, "modules.json"), Name: "path", Found: m.Path, Expected: "a folder of the model's directory"}
			}
			if err := p.readMode(filepath.Join(dir, m.Path, "config.json")); err != nil {
				return p, err
			}
		default:
			p.Problem = fmt.Sprintf("the module %s of modules.json", m.Type)
		}
	}
	return p, nil
}

// readMode reads a pooling module's configuration. Its modes are flags; newer files have their name too.
func (p *Pooling) readMode(file string) error {
	config := make(map[string]any)
	if found, err := readJSON(file, &config); err != nil {
		return err
	} else if !found {
		return &weights.FormatError{File: file, Found: "no file", Expected: "the configuration of the pooling that modules.json names"}
	}
	var modes []string
	if name, ok := config["pooling_mode"].(string); ok {
		modes = append(modes, name)
	}
	for name, on := range config {
		if mode, ok := strings.CutPrefix(name, "pooling_mode_"); ok && on == true {
			modes = append(modes, mode)
		}
	}
	if len(modes) == 1 {
		switch modes[0] {
		case "mean", "mean_tokens":
			p.Mode = "mean"
			return nil
		case "lasttoken":
			p.Mode = "last"
			return nil
		}
	}
	p.Problem = fmt.Sprintf("the pooling %s of %s", strings.Join(modes, " and "), filepath.Base(filepath.Dir(file)))
	return nil
}

// readJSON reads a file; false if there is none.
func readJSON(file string, to any) (found bool, err error) {
	err = weights.ReadJSON(file, to, "JSON as sentence-transformers writes it")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
