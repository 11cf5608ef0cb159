package tokenizer

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/millrace/millrace/compute/weights"
)

// specialTokens are the tokens that the model's files name.
type specialTokens struct {
	text map[string]string // "bos_token" -> "<s>": variables of a chat template
	bos  int32             // -1: none
	eos  int32             // -1: none
}

// specialNames are those that transformers hands to a template.
var specialNames = []string{
	"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
}

// Load reads a Hugging Face model folder: tokenizer.json, or vocab.json with merges.txt, or tokenizer.model; and, where present,
// tokenizer_config.json, special_tokens_map.json, chat_template.jinja, additional_chat_templates, generation_config.json and
// config.json. If the path ends in .gguf, it reads the metadata of that file. Errors are ErrFile with the file and what is wrong.
func Load(dir string) (*Tokenizer, error) {
	if weights.IsGGUF(dir) {
		return loadGGUF(dir)
	}
	path, data, names, err := readTokenizer(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	t := &Tokenizer{source: source{file: sha256.Sum256(data)}}
	if err = t.read(data); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	t.pair, t.pairFault = newPair(t.vocab.processor)
	if err := t.loadConfig(dir, names); err != nil {
		return nil, err
	}
	if t.lib, err = openLibrary(data); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	return t, nil
}

// readTokenizer reads tokenizer.json, or spells what a folder has in its place as one. names are the special tokens of such files.
func readTokenizer(dir string) (path string, data []byte, names map[string]string, err error) {
	name := slowFile(dir)
	if name == "" {
		path = filepath.Join(dir, "tokenizer.json")
		data, err = weights.ReadText(path)
		return path, data, nil, err
	}
	path = filepath.Join(dir, name)
	s := &slowTokenizer{dir: dir}
	data, names, err = s.tokenizerJSON(name)
	_, isNamed := errors.AsType[*weights.FormatError](err)
	_, isPath := errors.AsType[*fs.PathError](err)
	if err != nil && !isNamed && !isPath {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return path, data, names, err
}

// loadConfig reads the files beside the tokenizer. names are special tokens that these need not name.
func (t *Tokenizer) loadConfig(dir string, names map[string]string) error {
	var config, tokens map[string]json.RawMessage
	if err := readJSON(dir, "tokenizer_config.json", &config); err != nil {
		return err
	}
	if err := readJSON(dir, "special_tokens_map.json", &tokens); err != nil {
		return err
	}
	t.special = t.namedTokens(config, tokens, names)
	var err error
	if t.eos, err = t.endTokens(dir); err != nil {
		return err
	}
	return t.loadTemplates(dir, config["chat_template"])
}

// readJSON leaves v as it is if there is no such file.
func readJSON(dir, name string, v any) error {
	err := weights.ReadJSON(filepath.Join(dir, name), v, "a JSON object")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrFile, err)
	}
	return nil
}

// namedTokens reads the tokens that tokenizer_config.json names, or else special_tokens_map.json. names are those that are known
// already; nil: none.
func (t *Tokenizer) namedTokens(config, tokens map[string]json.RawMessage, names map[string]string) specialTokens {
	s := specialTokens{text: map[string]string{}, bos: -1, eos: -1}
	for _, name := range specialNames {
		text := names[name]
		if names == nil {
			text = cmp.Or(tokenName(config[name]), tokenName(tokens[name]))
		}
		if text != "" {
			s.text[name] = text
		}
	}
	s.bos = t.idOf(s.text["bos_token"])
	s.eos = t.idOf(s.text["eos_token"])
	return s
}

// tokenName reads "<s>" or {"content": "<s>", ...}.
func tokenName(raw json.RawMessage) string {
	var plain string
	if json.Unmarshal(raw, &plain) == nil {
		return plain
	}
	var added struct {
		Content string `json:"content"`
	}
	if json.Unmarshal(raw, &added) == nil {
		return added.Content
	}
	return ""
}

func (t *Tokenizer) idOf(piece string) int32 {
	if piece == "" {
		return -1
	}
	return int32(slices.Index(t.vocab.pieces, piece))
}

// endTokens merges the ends of an answer that the files name.
func (t *Tokenizer) endTokens(dir string) ([]int32, error) {
	var ids []int32
	if t.special.eos >= 0 {
		ids = append(ids, t.special.eos)
	}
	for _, name := range []string{"generation_config.json", "config.json"} {
		var config struct {
			EOS json.RawMessage `json:"eos_token_id"`
		}
		if err := readJSON(dir, name, &config); err != nil {
			return nil, err
		}
		more, ok := t.idList(config.EOS)
		if !ok {
			return nil, fmt.Errorf("%w: %s: eos_token_id is %s, expected an id or the text of a token, a list of them, or null", ErrFile,
				filepath.Join(dir, name), config.EOS)
		}
		ids = append(ids, more...)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// idList reads 2, "</s>", a list of such, or null.
func (t *Tokenizer) idList(raw json.RawMessage) (ids []int32, ok bool) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, true
	}
	list := []json.RawMessage{raw}
	if raw[0] == '[' && json.Unmarshal(raw, &list) != nil {
		return nil, false
	}
	for _, one := range list {
		id := int32(-1)
		if text := tokenName(one); text != "" {
			id = t.idOf(text)
		} else if json.Unmarshal(one, &id) != nil {
			return nil, false
		}
		if id < 0 {
			return nil, false
		}
		ids = append(ids, id)
	}
	return ids, true
}
