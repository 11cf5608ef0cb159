package tokenizer

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/compute/weights"
	"github.com/millrace/millrace/internal/nearest"
)

// errKind means a tokenizer in a GGUF file that tokenizer.json is not known
// to have the same form of.
var errKind = errors.New("a tokenizer.json beside the file, from the model's own repository, is read instead")

// errNoTokens means a GGUF file without a tokenizer.
var errNoTokens = fmt.Errorf("found no tokenizer.ggml.tokens, expected a tokenizer: %w", errKind)

// Token types of tokenizer.ggml.token_type (llama_token_type).
const (
	ggufControl     = 3
	ggufUserDefined = 4
)

// loadGGUF reads the tokenizer of a GGUF file's metadata. If its kind has no counterpart in
// tokenizer.json, it reads the tokenizer.json in the same folder.
func loadGGUF(path string) (*Tokenizer, error) {
	g, err := weights.OpenGGUF(path, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	defer g.Close() //nolint:errcheck // nothing was written
	v := ggufVocabulary{metadata: g.Metadata}
	file, err := v.tokenizerJSON()
	beside := filepath.Dir(path)
	if errors.Is(err, errKind) && hasTokenizer(beside) {
		return Load(beside)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	t := &Tokenizer{special: specialTokens{text: map[string]string{}, bos: -1, eos: -1}}
	if err = t.read(file); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	v.name(t)
	t.source.file = sha256.Sum256(file)
	if err := t.setTemplates(v.templates()); err != nil {
		return nil, fmt.Errorf("%w: %s: tokenizer.chat_template: %w", ErrFile, path, err)
	}
	if t.lib, err = openLibrary(file); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	return t, nil
}

// CheckGGUFBegin returns an error if the tokenizer of a GGUF file is not read. It takes a file that has the begin of the GGUF file. A model
// without a tokenizer is no error.
func CheckGGUFBegin(path string) error {
	g, err := weights.ReadGGUFBegin(path, nil)
	if err != nil {
		return err
	}
	v := ggufVocabulary{metadata: g.Metadata}
	if _, err := v.tokenizerJSON(); err != nil && !errors.Is(err, errNoTokens) {
		return err
	}
	return nil
}

func hasTokenizer(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "tokenizer.json"))
	return err == nil
}

// ggufVocabulary is a vocabulary in GGUF's keys (tokenizer.ggml.*).
type ggufVocabulary struct {
	metadata weights.Metadata
	tokens   []string
	types    []int64
	ids      map[string]int
}

type object = map[string]any

// tokenizerJSON spells the tokenizer as transformers' converters do.
func (v *ggufVocabulary) tokenizerJSON() ([]byte, error) {
	if err := v.read(); err != nil {
		return nil, err
	}
	var file object
	var err error
	var begin bool
	switch kind, _ := v.metadata["tokenizer.ggml.model"].(string); kind {
	case "gpt2":
		var p preTokenizer
		if p, err = v.preTokenizer(); err != nil {
			return nil, err
		}
		begin = p.begin
		file, err = v.byteLevel(p)
	case "llama":
		begin = true
		file, err = v.sentencePiece()
	case "gemma4":
		begin = true
		delete(v.metadata, "tokenizer.ggml.add_bos_token") // llama.cpp adds it whatever the file says: some say false
		file, err = v.wholeText()
	default:
		return nil, fmt.Errorf("found tokenizer.ggml.model %.40q, expected gpt2, llama or gemma4: %w", kind, errKind)
	}
	if err != nil {
		return nil, err
	}
	file["version"], file["added_tokens"] = "1.0", v.added()
	file["post_processor"] = v.postProcessor(begin)
	return json.Marshal(file)
}

func (v *ggufVocabulary) read() error {
	v.tokens, _ = v.metadata["tokenizer.ggml.tokens"].([]string)
	if len(v.tokens) == 0 {
		return errNoTokens
	}
	v.ids = make(map[string]int, len(v.tokens))
	for id, token := range v.tokens {
		if other, twice := v.ids[token]; twice {
			return fmt.Errorf("tokenizer.ggml.tokens: found %.40q as %d and %d", token, other, id)
		}
		v.ids[token] = id
	}
	types, _ := v.metadata["tokenizer.ggml.token_type"].(weights.List)
	if n := types.Len(); n != 0 && n != len(v.tokens) {
		return fmt.Errorf("tokenizer.ggml.token_type: found %d, expected one for each of %d tokens", n, len(v.tokens))
	}
	v.types = make([]int64, len(v.tokens))
	for id := range types.Len() {
		v.types[id], _ = types.At(id).(int64)
	}
	return nil
}

// added are the tokens that are found in a text as they are written.
func (v *ggufVocabulary) added() []object {
	list := []object{}
	strips := v.strips()
	for id, kind := range v.types {
		if v.isAdded(v.tokens[id]) {
			list = append(list, object{
				"id": id, "content": v.tokens[id], "special": kind == ggufControl,
				"single_word": false, "lstrip": false, "rstrip": strips(v.tokens[id]), "normalized": false,
			})
		}
	}
	return list
}

// strips says which tokens take the white space after them, which the file does not: those of Phi-3. llama.cpp finds them by the same names
// (load_vocab in llama-vocab.cpp).
func (v *ggufVocabulary) strips() func(token string) bool {
	name, _ := v.metadata["general.name"].(string)
	name = strings.ToLower(name)
	phi3 := strings.Contains(name, "phi-3") || strings.Contains(name, "phi3")
	return func(token string) bool {
		return phi3 && !slices.Contains([]string{"<unk>", "<s>", "<|endoftext|>"}, token)
	}
}

// preTokenizer is the one that the file names.
func (v *ggufVocabulary) preTokenizer() (preTokenizer, error) {
	name, _ := v.metadata["tokenizer.ggml.pre"].(string)
	known := preTokenizers()
	p, ok := known[name]
	if !ok {
		return p, fmt.Errorf("found tokenizer.ggml.pre %.40q, expected a pre-tokenizer of docs/models.md, where the nearest are %s: %w",
			name, strings.Join(nearest.Names(name, slices.Sorted(maps.Keys(known)), 3), ", "), errKind)
	}
	return p, nil
}

// byteLevel is the byte-level BPE of GPT-2 and of most models since.
func (v *ggufVocabulary) byteLevel(p preTokenizer) (object, error) {
	merges, err := v.writtenMerges()
	if err != nil {
		return nil, err
	}
	return byteLevelFile(v.ids, merges, p), nil
}

func (v *ggufVocabulary) writtenMerges() ([]string, error) {
	merges, ok := v.metadata["tokenizer.ggml.merges"].([]string)
	if !ok {
		return nil, errors.New("found no tokenizer.ggml.merges, expected those of the tokens")
	}
	return merges, nil
}

// byteLevelFile spells a byte-level BPE as tokenizer.json does. merges are lines or pairs.
func byteLevelFile(vocab map[string]int, merges any, p preTokenizer) object {
	file := object{
		"model":         object{"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": p.ignoreMerges},
		"pre_tokenizer": p.stages(),
		"decoder":       object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
	}
	if p.nfc {
		file["normalizer"] = object{"type": "NFC"}
	}
	return file
}

// sentencePiece is the BPE of Llama 1, 2 and Mistral, whose merges are in the
// order of the pieces' scores.
func (v *ggufVocabulary) sentencePiece() (object, error) {
	scores, _ := v.metadata["tokenizer.ggml.scores"].(weights.List)
	if n := scores.Len(); n != len(v.tokens) {
		return nil, fmt.Errorf("tokenizer.ggml.scores: found %d, expected one for each of %d tokens", n, len(v.tokens))
	}
	file := v.pieces(v.merges(scores))
	if prefix, ok := v.metadata["tokenizer.ggml.add_space_prefix"].(bool); !ok || prefix {
		file["normalizer"] = object{"type": "Sequence", "normalizers": []any{object{"type": "Prepend", "prepend": "\u2581"},
			file["normalizer"]}}
		file["decoder"] = object{"type": "Sequence", "decoders": []any{file["decoder"],
			object{"type": "Strip", "content": " ", "start": 1, "stop": 0}}}
	}
	return file, nil
}

// wholeText is the BPE of Gemma 4, which has the merges of its pieces. GemmaTokenizer of transformers.
func (v *ggufVocabulary) wholeText() (object, error) {
	merges, err := v.writtenMerges()
	if err != nil {
		return nil, err
	}
	return v.pieces(merges), nil
}

// pieces spells a BPE of texts in which U+2581 is a space.
func (v *ggufVocabulary) pieces(merges any) object {
	model := object{"type": "BPE", "vocab": v.ids, "merges": merges, "byte_fallback": true, "fuse_unk": true}
	if id, ok := v.id("unknown"); ok {
		model["unk_token"] = v.tokens[id]
	}
	return object{
		"model":      model,
		"normalizer": object{"type": "Replace", "pattern": object{"String": " "}, "content": "\u2581"},
		"decoder": object{"type": "Sequence", "decoders": []object{
			{"type": "Replace", "pattern": object{"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
		}},
	}
}

// merges are all pairs of pieces that make a piece, best score first. Source:
// generate_merges in transformers' convert_slow_tokenizer.py.
func (v *ggufVocabulary) merges(scores weights.List) [][2]string {
	type merge struct {
		left, right string
		score       float64
	}
	var all []merge
	for id, piece := range v.tokens {
		if v.isAdded(piece) {
			continue
		}
		from := len(all)
		score, _ := scores.At(id).(float64)
		for at := range piece {
			left, right := piece[:at], piece[at:]
			if at > 0 && v.isPiece(left) && v.isPiece(right) {
				all = append(all, merge{left, right, score})
			}
		}
		slices.SortFunc(all[from:], func(a, b merge) int {
			return cmp.Or(cmp.Compare(v.ids[a.left], v.ids[b.left]), cmp.Compare(v.ids[a.right], v.ids[b.right]))
		})
	}
	slices.SortStableFunc(all, func(a, b merge) int {
		return cmp.Or(cmp.Compare(b.score, a.score),
			cmp.Compare(utf8.RuneCountInString(b.left), utf8.RuneCountInString(a.left)),
			cmp.Compare(utf8.RuneCountInString(b.right), utf8.RuneCountInString(a.right)))
	})
	pairs := make([][2]string, len(all))
	for i, m := range all {
		pairs[i] = [2]string{m.left, m.right}
	}
	return pairs
}

// isAdded says whether a token is found in a text as it is written.
func (v *ggufVocabulary) isAdded(token string) bool {
	kind := v.types[v.ids[token]]
	return kind == ggufControl || kind == ggufUserDefined
}

func (v *ggufVocabulary) isPiece(token string) bool {
	_, ok := v.ids[token]
	return ok && !v.isAdded(token)
}

// id is tokenizer.ggml.NAME_token_id, if it is a token.
func (v *ggufVocabulary) id(name string) (int64, bool) {
	id, ok := v.metadata["tokenizer.ggml."+name+"_token_id"].(int64)
	return id, ok && id >= 0 && id < int64(len(v.tokens))
}

// postProcessor adds BOS and EOS if the file says so. If the file does not mention BOS, missing
// decides.
func (v *ggufVocabulary) postProcessor(missing bool) any {
	single, special := []object{{"Sequence": object{"id": "A", "type_id": 0}}}, object{}
	add := func(name string, missing bool) (object, bool) {
		wanted, says := v.metadata["tokenizer.ggml.add_"+name+"_token"].(bool)
		if !says {
			wanted = missing
		}
		id, has := v.id(name)
		if !has || !wanted {
			return nil, false
		}
		token := v.tokens[id]
		special[token] = object{"id": token, "ids": []int64{id}, "tokens": []string{token}}
		return object{"SpecialToken": object{"id": token, "type_id": 0}}, true
	}
	if bos, ok := add("bos", missing); ok {
		single = slices.Insert(single, 0, bos)
	}
	if eos, ok := add("eos", false); ok {
		single = append(single, eos)
	}
	if len(special) == 0 {
		return nil
	}
	pair := append(slices.Clone(single), object{"Sequence": object{"id": "B", "type_id": 1}})
	return object{"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
}

// templates are the chat templates by name: tokenizer.chat_template is the default one, and
// tokenizer.chat_template.NAME another.
func (v *ggufVocabulary) templates() map[string]string {
	sources := map[string]string{}
	for key, value := range v.metadata {
		rest, found := strings.CutPrefix(key, "tokenizer.chat_template")
		source, ok := value.(string)
		switch name, named := strings.CutPrefix(rest, "."); {
		case !found || !ok:
		case rest == "":
			sources[defaultTemplate] = source
		case named:
			sources[name] = source
		}
	}
	return sources
}

// name sets the tokens that the file names.
func (v *ggufVocabulary) name(t *Tokenizer) {
	for _, name := range [][2]string{{"bos", "bos_token"}, {"eos", "eos_token"}, {"unknown", "unk_token"}, {"padding", "pad_token"}} {
		if id, ok := v.id(name[0]); ok {
			t.special.text[name[1]] = v.tokens[id]
		}
	}
	t.special.bos, t.special.eos = t.idOf(t.special.text["bos_token"]), t.idOf(t.special.text["eos_token"])
	for _, name := range []string{"eos", "eot", "eom"} {
		if id, ok := v.id(name); ok && !slices.Contains(t.eos, int32(id)) {
			t.eos = append(t.eos, int32(id))
		}
	}
	slices.Sort(t.eos)
}
