package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// errClass means files of a tokenizer whose class is not read, or that are of another format than their name says.
var errClass = errors.New("a tokenizer.json, which transformers' AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) writes, " +
	"is read instead")

// slowFiles are files that transformers makes a fast tokenizer of, where a folder has no tokenizer.json.
var slowFiles = []string{"vocab.json", "tokenizer.model"}

// slowTokenizer is a tokenizer in the files of older checkpoints: vocab.json with merges.txt, or tokenizer.model, and the tokens that
// tokenizer_config.json, special_tokens_map.json and added_tokens.json add. What they mean depends on their class. Source: transformers 5,
// from_pretrained in tokenization_utils_base.py and tokenization_utils_tokenizers.py.
type slowTokenizer struct {
	dir    string
	class  string // such as GPT2Tokenizer, without Fast; "": the files do not say
	kind   string // model_type of config.json
	config slowConfig

	named map[string]*addedToken // by the names in specialNames; nil: there is none, whatever the class has
	given map[int]addedToken     // by id, of added_tokens_decoder or added_tokens.json
}

// slowConfig is what is read of tokenizer_config.json.
type slowConfig struct {
	Class      string                `json:"tokenizer_class"`
	AddPrefix  *bool                 `json:"add_prefix_space"`
	AddBOS     bool                  `json:"add_bos_token"`
	AddEOS     bool                  `json:"add_eos_token"`
	Legacy     *bool                 `json:"legacy"`
	Added      map[string]addedToken `json:"added_tokens_decoder"`
	Additional extraTokens           `json:"additional_special_tokens"`
	Extra      extraTokens           `json:"extra_special_tokens"`
}

// extraTokens is a list of tokens. An object of names and tokens, which no class here has, is none.
type extraTokens []addedToken

// UnmarshalJSON implements json.Unmarshaler.
func (e *extraTokens) UnmarshalJSON(raw []byte) error {
	if raw[0] != '[' {
		return nil
	}
	return json.Unmarshal(raw, (*[]addedToken)(e))
}

// addedToken is a token that is found in a text as it is written. The files spell it as its text or as an object.
type addedToken struct {
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized *bool  `json:"normalized"` // nil: unless it is special
	Special    bool   `json:"special"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (a *addedToken) UnmarshalJSON(raw []byte) error {
	if raw[0] == '"' {
		a.Special = true
		return json.Unmarshal(raw, &a.Content)
	}
	type plain addedToken
	return json.Unmarshal(raw, (*plain)(a))
}

// object spells the token as tokenizer.json does.
func (a *addedToken) object(id int) object {
	normalized := !a.Special
	if a.Normalized != nil {
		normalized = *a.Normalized
	}
	return object{
		"id": id, "content": a.Content, "special": a.Special, "single_word": a.SingleWord, "lstrip": a.LStrip, "rstrip": a.RStrip,
		"normalized": normalized,
	}
}

// slowFile is the first of slowFiles that a folder without tokenizer.json has; "" for none.
func slowFile(dir string) string {
	if hasTokenizer(dir) {
		return ""
	}
	for _, name := range slowFiles {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return name
		}
	}
	return ""
}

// tokenizerJSON spells the tokenizer of one of slowFiles as tokenizer.json. names are the special tokens by the names of
// specialNames. An error is errClass if the files are not read.
func (s *slowTokenizer) tokenizerJSON(name string) (data []byte, names map[string]string, err error) {
	if err := s.read(); err != nil {
		return nil, nil, err
	}
	var file object
	var vocab map[string]int
	if name == "vocab.json" {
		file, vocab, err = s.bytePairs()
	} else {
		file, vocab, err = s.sentencePiece()
	}
	if err != nil {
		return nil, nil, err
	}
	added, names, err := s.added(vocab)
	if err != nil {
		return nil, nil, err
	}
	file["version"], file["added_tokens"] = "1.0", added
	id := func(name string) specialID {
		text := names[name]
		i, ok := vocab[text]
		if !ok {
			at := slices.IndexFunc(added, func(o object) bool { return o["content"] == text })
			if at >= 0 {
				i = added[at]["id"].(int)
			}
		}
		return specialID{text, i}
	}
	if s.class == "RobertaTokenizer" {
		pair := func(t specialID) []any { return []any{t.text, t.id} }
		file["post_processor"] = object{
			"type": "RobertaProcessing", "sep": pair(id("sep_token")), "cls": pair(id("cls_token")), "trim_offsets": true,
			"add_prefix_space": s.addPrefix(false),
		}
	} else {
		file["post_processor"] = s.postProcessor(id("bos_token"), id("eos_token"))
	}
	data, err = json.Marshal(file)
	return data, names, err
}

// read reads the configurations.
func (s *slowTokenizer) read() error {
	var config, tokens map[string]json.RawMessage
	var model struct {
		Kind  string `json:"model_type"`
		Class string `json:"tokenizer_class"`
	}
	for _, file := range []struct {
		name string
		v    any
	}{{"tokenizer_config.json", &config}, {"tokenizer_config.json", &s.config}, {"config.json", &model}} {
		if err := s.readJSON(file.name, file.v); err != nil {
			return err
		}
	}
	s.class, s.kind = s.config.Class, model.Kind
	if s.class == "" {
		s.class = model.Class
	}
	s.class = strings.TrimSuffix(s.class, "Fast")
	s.named, s.given = map[string]*addedToken{}, map[int]addedToken{}
	if s.config.Added == nil {
		if err := s.readJSON("special_tokens_map.json", &tokens); err != nil {
			return err
		}
	}
	for _, name := range specialNames {
		for _, from := range []map[string]json.RawMessage{config, tokens} {
			raw, ok := from[name]
			if !ok {
				continue
			}
			var t *addedToken
			if err := json.Unmarshal(raw, &t); err != nil {
				return s.fault("tokenizer_config.json", name, "the text of a token, or an object with it", "%.40s", raw)
			}
			s.named[name] = t
		}
	}
	return s.readGiven()
}

// readGiven reads the tokens whose ids the files say.
func (s *slowTokenizer) readGiven() error {
	for text, t := range s.config.Added {
		id, err := strconv.Atoi(text)
		if err != nil || id < 0 || id >= maxVocab {
			return s.fault("tokenizer_config.json", "added_tokens_decoder", fmt.Sprintf("an id of 0..%d", maxVocab-1), "%.40q", text)
		}
		s.given[id] = t
	}
	if s.config.Added != nil {
		return nil
	}
	var ids map[string]int
	if err := s.readJSON("added_tokens.json", &ids); err != nil {
		return err
	}
	for text, id := range ids {
		if _, twice := s.given[id]; twice || id < 0 || id >= maxVocab {
			return s.fault("added_tokens.json", text, fmt.Sprintf("an id of 0..%d that no other token has", maxVocab-1), "%d", id)
		}
		s.given[id] = addedToken{Content: text, Special: s.isNamed(text)}
	}
	return nil
}

// readJSON leaves v as it is if there is no such file.
func (s *slowTokenizer) readJSON(name string, v any) error {
	err := weights.ReadJSON(filepath.Join(s.dir, name), v, "a JSON object of a tokenizer")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// fault names a file of the folder.
func (s *slowTokenizer) fault(file, name, expected, found string, args ...any) error {
	return &weights.FormatError{File: filepath.Join(s.dir, file), Name: name, Found: fmt.Sprintf(found, args...), Expected: expected}
}

func (s *slowTokenizer) isNamed(text string) bool {
	is := func(t addedToken) bool { return t.Content == text }
	for _, t := range s.named {
		if t != nil && is(*t) {
			return true
		}
	}
	return slices.ContainsFunc(s.extra(), is)
}

// extra are the special tokens without a name.
func (s *slowTokenizer) extra() []addedToken {
	if s.config.Extra != nil {
		return s.config.Extra
	}
	return s.config.Additional
}

// defaults names the tokens that the class has where the files do not say.
func (s *slowTokenizer) defaults(names map[string]string) {
	for name, text := range names {
		if _, says := s.named[name]; !says {
			s.named[name] = &addedToken{Content: text, Special: true}
		}
	}
}

// added are the tokens that are found in a text as they are written, in the order of their ids: those whose ids the files say, those
// with names, and the others. Tokens outside of the vocabulary get the next ids.
func (s *slowTokenizer) added(vocab map[string]int) (list []object, names map[string]string, err error) {
	names = map[string]string{}
	list = []object{}
	ids := map[string]int{}
	next := len(vocab)
	add := func(t addedToken) int {
		id, known := ids[t.Content]
		if known || t.Content == "" {
			return id
		}
		if id, known = vocab[t.Content]; !known {
			id = next
		}
		next = max(next, id+1)
		ids[t.Content] = id
		list = append(list, t.object(id))
		return id
	}
	for _, id := range slices.Sorted(maps.Keys(s.given)) {
		t := s.given[id]
		t.Special = t.Special || s.isNamed(t.Content)
		if got := add(t); got != id {
			return nil, nil, fmt.Errorf("found the added token %.40q with id %d, expected %d, by the vocabulary and the other tokens",
				t.Content, id, got)
		}
	}
	for _, name := range specialNames {
		if t := s.named[name]; t != nil && t.Content != "" {
			named := *t
			named.Special = true
			add(named)
			names[name] = t.Content
		}
	}
	for _, t := range s.extra() {
		add(t)
	}
	slices.SortFunc(list, func(a, b object) int { return a["id"].(int) - b["id"].(int) })
	return list, names, nil
}

// specialID is a token and its id.
type specialID struct {
	text string
	id   int
}

// postProcessor puts BOS before each text and EOS after it, if the files say so.
func (s *slowTokenizer) postProcessor(bos, eos specialID) object {
	special := object{}
	text := func(sequence string, kind int) (parts []object) {
		add := func(t specialID, wanted bool) {
			if wanted && t.text != "" {
				special[t.text] = object{"id": t.text, "ids": []int{t.id}, "tokens": []string{t.text}}
				parts = append(parts, object{"SpecialToken": object{"id": t.text, "type_id": kind}})
			}
		}
		add(bos, s.config.AddBOS)
		parts = append(parts, object{"Sequence": object{"id": sequence, "type_id": kind}})
		add(eos, s.config.AddEOS)
		return parts
	}
	single := text("A", 0)
	return object{"type": "TemplateProcessing", "single": single, "pair": slices.Concat(single, text("B", 1)), "special_tokens": special}
}

// addPrefix is add_prefix_space.
func (s *slowTokenizer) addPrefix(missing bool) bool {
	if s.config.AddPrefix == nil {
		return missing
	}
	return *s.config.AddPrefix
}

// bytePairs reads vocab.json and merges.txt, a byte-level BPE.
func (s *slowTokenizer) bytePairs() (file object, vocab map[string]int, err error) {
	p, err := s.bytePairClass()
	if err != nil {
		return nil, nil, err
	}
	p.prefix = s.addPrefix(false)
	path := filepath.Join(s.dir, "vocab.json")
	if err := weights.ReadJSON(path, &vocab, `{"token": id}`); err != nil {
		return nil, nil, err
	}
	text, err := weights.ReadText(filepath.Join(s.dir, "merges.txt"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, s.fault("merges.txt", "", "the merges of the tokens in vocab.json", "no such file")
	}
	if err != nil {
		return nil, nil, err
	}
	merges, err := s.readMerges(string(text))
	if err != nil {
		return nil, nil, err
	}
	return byteLevelFile(vocab, merges, p), vocab, nil
}

// bytePairClass is how a class cuts a text. It names the tokens that the class has.
func (s *slowTokenizer) bytePairClass() (preTokenizer, error) {
	if s.class == "" {
		s.class = map[string]string{
			"gpt2": "GPT2Tokenizer", "gptj": "GPT2Tokenizer", "gpt_neo": "GPT2Tokenizer", "opt": "GPT2Tokenizer", "phi": "GPT2Tokenizer",
			"starcoder2": "GPT2Tokenizer", "jais2": "GPT2Tokenizer", "roberta": "RobertaTokenizer",
			"qwen2": "Qwen2Tokenizer", "qwen2_moe": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer", "qwen3_moe": "Qwen2Tokenizer",
		}[s.kind]
	}
	const end = "<|endoftext|>"
	switch s.class {
	case "GPT2Tokenizer", "CodeGenTokenizer":
		s.defaults(map[string]string{"bos_token": end, "eos_token": end, "unk_token": end})
		return preTokenizers()["gpt-2"], nil
	case "RobertaTokenizer":
		s.defaults(map[string]string{
			"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>", "pad_token": "<pad>",
			"mask_token": "<mask>",
		})
		return preTokenizers()["gpt-2"], nil
	case "Qwen2Tokenizer":
		s.defaults(map[string]string{"eos_token": end, "unk_token": end, "pad_token": end})
		return preTokenizers()["qwen2"], nil
	}
	return preTokenizer{},
		fmt.Errorf("found tokenizer_class %.40q and model_type %.40q, expected GPT2Tokenizer, RobertaTokenizer or Qwen2Tokenizer: %w",
			s.class, s.kind, errClass)
}

// readMerges reads merges.txt: a line for each pair, the first one with the file's version.
func (s *slowTokenizer) readMerges(text string) ([][2]string, error) {
	merges := [][2]string{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(line, "#version") || line == "" {
			continue
		}
		left, right, ok := strings.Cut(line, " ")
		if !ok || left == "" || right == "" || strings.Contains(right, " ") {
			return nil, s.fault("merges.txt", fmt.Sprintf("line %d", n), "two tokens", "%.80q", line)
		}
		merges = append(merges, [2]string{left, right})
	}
	return merges, nil
}
