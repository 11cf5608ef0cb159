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
	Mode      string  // "last" or "mean"; of an encoder "first", too
	Normalize bool    // the vector has length 1
	Named     bool    // there are such files
	Problem   string  // what they ask for that is not served; "": nothing
	Dense     []Dense // layers after the pooling of an encoder, in their order

	Prompts map[string]string // texts before a text, by their names; nil: none
	Default string            // the prompt of a text for which none is named; "": none
}

// Dense is a layer that makes another vector of a text's.
type Dense struct {
	Folder  string // of its tensors, in the model's directory
	In, Out int
	Bias    bool
	Tanh    bool // of the result; else it is as it is
}

// defaultPooling is the normalized hidden state of the last token or, of an encoder, the mean of all, as sentence-transformers has it.
func defaultPooling(encoder bool) Pooling {
	if encoder {
		return Pooling{Mode: "mean", Normalize: true}
	}
	return Pooling{Mode: "last", Normalize: true}
}

// readPooling reads modules.json, the configuration of its pooling module, and config_sentence_transformers.json in a model's directory.
// Without them the pooling is defaultPooling. Faults are *weights.FormatError.
func (c *Config) readPooling(dir string) error {
	p := &c.Pooling
	if err := p.readPrompts(filepath.Join(dir, "config_sentence_transformers.json")); err != nil {
		return err
	}
	var modules []struct {
		Path string `json:"path"`
		Type string `json:"type"`
	}
	found, err := readJSON(filepath.Join(dir, "modules.json"), &modules)
	if err != nil || !found {
		return err
	}
	p.Named, p.Normalize = true, false
	pooled := false
	for _, m := range modules {
		kind := m.Type[strings.LastIndexByte(m.Type, '.')+1:]
		dense := kind == "Dense" && c.Encoder && pooled && !p.Normalize // only there has an encoder's program a place for it
		if (dense || kind == "Pooling") && !filepath.IsLocal(m.Path) {
			return &weights.FormatError{File: filepath.Join(dir, "modules.json"), Name: "path", Found: m.Path,
				Expected: "a folder of the model's directory"}
		}
		switch {
		case kind == "Transformer":
		case kind == "Normalize":
			p.Normalize = true
		case kind == "Pooling":
			pooled, err = true, p.readMode(filepath.Join(dir, m.Path, "config.json"), c.Encoder)
		case dense:
			err = c.readDense(dir, m.Path)
		default:
			p.Problem = fmt.Sprintf("the module %s of modules.json", m.Type)
		}
		if err != nil {
			return err
		}
	}
	if p.Problem != "" || len(c.Classifier.Labels) > 0 { // no vectors are made
		p.Dense = nil
	}
	return nil
}

// readDense reads the configuration of a dense layer in a folder of the model's directory. Its default activation is tanh.
func (c *Config) readDense(dir, folder string) error {
	file := filepath.Join(dir, folder, "config.json")
	f, err := readFields(file)
	if errors.Is(err, fs.ErrNotExist) {
		return &weights.FormatError{File: file, Found: "no file", Expected: "the configuration of the dense layer that modules.json names"}
	}
	if err != nil {
		return err
	}
	p, width := &c.Pooling, c.Hidden
	if n := len(p.Dense); n > 0 {
		width = p.Dense[n-1].Out
	}
	d := Dense{Folder: folder, In: f.size(maxWidth, "in_features"), Out: f.size(maxWidth, "out_features"), Bias: f.flag(true, "bias")}
	if f.err == nil && d.In != width {
		f.fault("in_features", fmt.Sprint(d.In), fmt.Sprintf("%d, the width of the vector before it", width))
	}
	switch name := f.text("Tanh", "activation_function"); name[strings.LastIndexByte(name, '.')+1:] {
	case "Identity":
	case "Tanh":
		d.Tanh = true
	default:
		p.Problem = fmt.Sprintf("the activation %.60s of %s", name, d.Folder)
	}
	p.Dense = append(p.Dense, d)
	return f.err
}

// readPrompts reads the prompts of sentence-transformers, and which one is for all texts.
func (p *Pooling) readPrompts(file string) error {
	var config struct {
		Prompts map[string]string `json:"prompts"`
		Default string            `json:"default_prompt_name"`
	}
	if _, err := readJSON(file, &config); err != nil {
		return err
	}
	for name, text := range config.Prompts {
		if text == "" { // as none
			delete(config.Prompts, name)
		}
	}
	if len(config.Prompts) > 0 {
		p.Prompts = config.Prompts
	}
	if text := config.Prompts[config.Default]; text != "" {
		p.Default = config.Default
	}
	return nil
}

// readMode reads a pooling module's configuration. Its modes are flags; newer files have their name too.
func (p *Pooling) readMode(file string, encoder bool) error {
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
	if config["include_prompt"] == false && p.Prompts != nil {
		p.Problem = fmt.Sprintf("a pooling without the tokens of the prompt in %s", filepath.Base(filepath.Dir(file)))
		return nil
	}
	if len(modes) == 1 {
		switch mode := modes[0]; {
		case mode == "mean" || mode == "mean_tokens":
			p.Mode = "mean"
			return nil
		case mode == "lasttoken":
			p.Mode = "last"
			return nil
		case encoder && (mode == "cls" || mode == "cls_token"):
			p.Mode = "first"
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
