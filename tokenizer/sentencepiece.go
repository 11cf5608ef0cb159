package tokenizer

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/millrace/millrace/compute/weights"
)

// Types of a piece (ModelProto.SentencePiece.Type). The zero value is not one.
const (
	pieceNormal      = 1
	pieceControl     = 3
	pieceUserDefined = 4
)

// Kinds of models (TrainerSpec.ModelType).
const (
	modelUnigram = 1
	modelBPE     = 2
)

// spPiece is a piece of a SentencePiece model.
type spPiece struct {
	text  string
	score float32
	kind  int
}

// spModel is what is read of a SentencePiece model. Source: sentencepiece_model.proto of github.com/google/sentencepiece.
type spModel struct {
	pieces       []spPiece
	kind         int
	byteFallback bool
	unknown      int

	charsmap                     []byte // normalization of characters; empty: none
	prefix, trim, escape         bool   // add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces
	bos, eos                     int
	unkPiece, bosPiece, eosPiece string
}

// space stands for a space in a piece.
const space = "\u2581"

// errMessage means bytes that are no protobuf.
var errMessage = errors.New("found bytes that are no SentencePiece model")

// readSentencePiece reads tokenizer.model.
func readSentencePiece(data []byte) (*spModel, error) {
	m := &spModel{ // the defaults of the format
		kind: modelUnigram, bos: 1, eos: 2, unkPiece: "<unk>", bosPiece: "<s>", eosPiece: "</s>", prefix: true, trim: true, escape: true,
	}
	err := eachField(data, func(n int, _ uint64, raw []byte) error {
		switch n {
		case 1:
			return m.readPiece(raw)
		case 2:
			return eachField(raw, m.trainer)
		case 3:
			return eachField(raw, m.normalizer)
		}
		return nil
	})
	if err == nil && len(m.pieces) == 0 {
		err = errMessage
	}
	return m, err
}

// eachField calls f for each field of a message, with its number or its bytes.
func eachField(message []byte, f func(n int, value uint64, raw []byte) error) error {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errMessage
		}
		message = message[n:]
		var value uint64
		var raw []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(message)
		case protowire.Fixed32Type:
			var bits uint32
			bits, n = protowire.ConsumeFixed32(message)
			value = uint64(bits)
		case protowire.Fixed64Type:
			value, n = protowire.ConsumeFixed64(message)
		case protowire.BytesType:
			raw, n = protowire.ConsumeBytes(message)
		default:
			return errMessage
		}
		if n < 0 {
			return errMessage
		}
		message = message[n:]
		if err := f(int(field), value, raw); err != nil {
			return err
		}
	}
	return nil
}

func (m *spModel) readPiece(message []byte) error {
	p := spPiece{kind: pieceNormal}
	err := eachField(message, func(n int, value uint64, raw []byte) error {
		switch n {
		case 1:
			p.text = string(raw)
		case 2:
			p.score = math.Float32frombits(uint32(value))
		case 3:
			p.kind = int(value)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case !utf8.ValidString(p.text):
		return fmt.Errorf("found piece %d of %.40q, expected UTF-8", len(m.pieces), p.text)
	case math.IsNaN(float64(p.score)) || math.IsInf(float64(p.score), 0):
		return fmt.Errorf("found score %v of piece %.40q, expected a finite number", p.score, p.text)
	case len(m.pieces) == maxVocab:
		return fmt.Errorf("found more pieces, expected %d at most", maxVocab)
	}
	m.pieces = append(m.pieces, p)
	return nil
}

func (m *spModel) trainer(n int, value uint64, raw []byte) error {
	switch n {
	case 3:
		m.kind = int(value)
	case 35:
		m.byteFallback = value != 0
	case 40:
		m.unknown = int(int32(value))
	case 41:
		m.bos = int(int32(value))
	case 42:
		m.eos = int(int32(value))
	case 45:
		m.unkPiece = string(raw)
	case 46:
		m.bosPiece = string(raw)
	case 47:
		m.eosPiece = string(raw)
	}
	return nil
}

func (m *spModel) normalizer(n int, value uint64, raw []byte) error {
	switch n {
	case 2:
		m.charsmap = raw
	case 3:
		m.prefix = value != 0
	case 4:
		m.trim = value != 0
	case 5:
		m.escape = value != 0
	}
	return nil
}

// sentencePiece reads tokenizer.model.
func (s *slowTokenizer) sentencePiece() (file object, vocab map[string]int, err error) {
	llama := s.class == "LlamaTokenizer" && !ownSettings(s.kind)
	if !llama && !slices.Contains([]string{"", "LlamaTokenizer", "PreTrainedTokenizer", "TokenizersBackend"}, s.class) {
		return nil, nil, fmt.Errorf("found tokenizer_class %.40q, expected LlamaTokenizer: %w", s.class, errClass)
	}
	data, err := weights.ReadText(filepath.Join(s.dir, "tokenizer.model"))
	if err != nil {
		return nil, nil, err
	}
	m, err := readSentencePiece(data)
	if errors.Is(err, errMessage) {
		err = fmt.Errorf("%w: %w", err, errClass)
	}
	if err != nil {
		return nil, nil, err
	}
	if m.kind != modelBPE && (llama || m.kind != modelUnigram) {
		return nil, nil, fmt.Errorf("found a SentencePiece model of type %d, expected %d, BPE, or, but for LlamaTokenizer, %d, Unigram: %w",
			m.kind, modelBPE, modelUnigram, errClass)
	}
	if !llama && m.kind == modelBPE {
		s.rename(m)
	}
	vocab = make(map[string]int, len(m.pieces))
	for id, p := range m.pieces {
		if other, twice := vocab[p.text]; twice {
			return nil, nil, fmt.Errorf("found the piece %.40q as %d and %d", p.text, other, id)
		}
		vocab[p.text] = id
	}
	s.addPieces(m, llama)
	if llama {
		return s.llama(m, vocab), vocab, nil
	}
	file, err = s.proto(m, vocab)
	return file, vocab, err
}

// ownSettings says whether transformers follows the settings of a tokenizer.model whatever its class is, by the model_type: those whose
// class on the Hub it does not use.
func ownSettings(kind string) bool {
	return slices.Contains([]string{
		"mistral", "mixtral", "ministral", "ministral3", "mistral3", "phi3", "phimoe", "minicpm3", "ernie4_5", "ernie4_5_moe", "nemotron",
		"persimmon", "stablelm", "granite", "granitemoe", "granitemoeshared",
	}, kind)
}

// rename gives pieces that stand for added tokens, such as <0x00> or <reserved_1>, the names of these.
func (s *slowTokenizer) rename(m *spModel) {
	kept := map[string]bool{}
	for id, p := range m.pieces {
		if _, given := s.given[id]; !given {
			kept[p.text] = true
		}
	}
	for id := range m.pieces {
		if t, given := s.given[id]; given && !kept[t.Content] {
			m.pieces[id].text = t.Content
		}
	}
}

// addPieces adds the pieces that are found in a text as they are written, and the model's special tokens.
func (s *slowTokenizer) addPieces(m *spModel, llama bool) {
	names := map[string]string{"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
	if !llama {
		for name, t := range map[string]struct {
			id   int
			text string
		}{"unk_token": {m.unknown, m.unkPiece}, "bos_token": {m.bos, m.bosPiece}, "eos_token": {m.eos, m.eosPiece}} {
			delete(names, name)
			if t.id >= 0 {
				names[name] = t.text
			}
		}
	}
	s.defaults(names)
	if s.extra() == nil {
		no := false
		for _, p := range m.pieces {
			if p.kind == pieceControl || llama && p.kind == pieceUserDefined {
				s.config.Extra = append(s.config.Extra, addedToken{Content: p.text, Normalized: &no, Special: p.kind == pieceControl})
			}
		}
	}
	if !llama && m.prefix && s.config.Added != nil {
		no := false
		for id, t := range s.given {
			t.Normalized = &no
			s.given[id] = t
		}
	}
}

// llama is the tokenizer of Llama 1 and 2, which does not follow the model's settings. Source: transformers, tokenization_llama.py.
func (s *slowTokenizer) llama(m *spModel, vocab map[string]int) object {
	scheme := "never"
	decoders := spDecoders(true, false)
	if s.addPrefix(true) {
		scheme = "first"
		if s.config.Legacy != nil && *s.config.Legacy {
			scheme = "always"
		}
		decoders = spDecoders(true, true)
	} else {
		decoders = append(decoders, object{"type": "Fuse"})
	}
	return object{
		"model": object{
			"type": "BPE", "vocab": vocab, "merges": pieceMerges(m.pieces, func(spPiece) bool { return true }, func(a, b spMerge) int {
				return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(utf8.RuneCountInString(a.left), utf8.RuneCountInString(b.left)))
			}), "byte_fallback": true, "fuse_unk": true,
		},
		"pre_tokenizer": metaspace(scheme),
		"decoder":       object{"type": "Sequence", "decoders": decoders},
	}
}

func metaspace(scheme string) object {
	return object{"type": "Metaspace", "replacement": space, "prepend_scheme": scheme, "split": false}
}

// spDecoders turn pieces into text.
func spDecoders(bytes, prefix bool) []object {
	list := []object{{"type": "Replace", "pattern": object{"String": space}, "content": " "}}
	if bytes {
		list = append(list, object{"type": "ByteFallback"})
	}
	if prefix { // of the text, not of each token
		list = append(list, object{"type": "Fuse"}, object{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	return list
}

// spMerge is a pair of pieces that make a piece.
type spMerge struct {
	left, right string
	id          int
	score       float32
}

// pieceMerges are all pairs of pieces that make a piece, of those that is takes, in the order of compare.
func pieceMerges(pieces []spPiece, is func(spPiece) bool, compare func(a, b spMerge) int) [][2]string {
	known := map[string]bool{}
	for _, p := range pieces {
		known[p.text] = known[p.text] || is(p)
	}
	var all []spMerge
	for id, p := range pieces {
		if !is(p) {
			continue
		}
		for at := range p.text {
			if left, right := p.text[:at], p.text[at:]; at > 0 && known[left] && known[right] {
				all = append(all, spMerge{left, right, id, p.score})
			}
		}
	}
	slices.SortFunc(all, compare)
	pairs := make([][2]string, len(all))
	for i, p := range all {
		pairs[i] = [2]string{p.left, p.right}
	}
	return pairs
}

// proto follows the model's own settings. Source: transformers, SpmConverter.build_tokenizer_from_spm_proto.
func (s *slowTokenizer) proto(m *spModel, vocab map[string]int) (object, error) {
	var whole []string // pieces that are never merged
	for _, p := range m.pieces {
		if p.kind == pieceUserDefined {
			whole = append(whole, p.text)
		}
	}
	model := object{"type": "Unigram", "unk_id": m.unknown, "byte_fallback": m.byteFallback}
	if m.kind == modelBPE {
		model = object{
			"type": "BPE", "vocab": vocab, "unk_token": m.unkPiece, "fuse_unk": true, "byte_fallback": m.byteFallback,
			"ignore_merges": len(whole) > 0,
			"merges": pieceMerges(m.pieces, func(p spPiece) bool { return p.kind == pieceNormal }, func(a, b spMerge) int {
				return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.id, b.id), cmp.Compare(a.left, b.left),
					cmp.Compare(a.right, b.right))
			}),
		}
	} else {
		if m.unknown < 0 || m.unknown >= len(m.pieces) {
			return nil, fmt.Errorf("found unk_id %d, expected 0..%d", m.unknown, len(m.pieces)-1)
		}
		scored := make([][2]any, len(m.pieces))
		for id, p := range m.pieces {
			scored[id] = [2]any{p.text, float64(p.score)}
		}
		model["vocab"] = scored
	}
	file := object{
		"model":      model,
		"normalizer": object{"type": "Sequence", "normalizers": s.spNormalizers(m)},
	}
	decoders := spDecoders(m.byteFallback, m.prefix)
	if m.byteFallback && !m.prefix {
		decoders = append(decoders, object{"type": "Fuse"})
	}
	file["decoder"] = object{"type": "Sequence", "decoders": decoders}
	var stages []object
	if m.prefix {
		scheme := "first"
		if s.legacy() {
			scheme = "always"
		}
		stages = append(stages, metaspace(scheme))
	}
	if len(whole) > 0 {
		slices.SortStableFunc(whole, func(a, b string) int { return cmp.Compare(utf8.RuneCountInString(b), utf8.RuneCountInString(a)) })
		for i := range whole {
			whole[i] = regexp.QuoteMeta(whole[i])
		}
		pattern := object{"Regex": strings.Join(whole, "|")}
		stages = append(stages, object{"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false})
	}
	if len(stages) > 0 {
		file["pre_tokenizer"] = object{"type": "Sequence", "pretokenizers": stages}
	}
	return file, nil
}

// legacy says whether each part of a text between added tokens has the model's prefix.
func (s *slowTokenizer) legacy() bool { return s.config.Legacy == nil || *s.config.Legacy }

// spNormalizers are in the order of SentencePiece.
func (s *slowTokenizer) spNormalizers(m *spModel) []object {
	list := []object{}
	replace := func(pattern object, content string) {
		list = append(list, object{"type": "Replace", "pattern": pattern, "content": content})
	}
	if len(m.charsmap) > 0 {
		list = append(list, object{"type": "Precompiled", "precompiled_charsmap": base64.StdEncoding.EncodeToString(m.charsmap)})
	}
	if m.trim {
		replace(object{"Regex": `\A +| +\z`}, "")
		replace(object{"Regex": " {2,}"}, " ")
	}
	if m.escape {
		replace(object{"String": " "}, space)
	}
	if m.prefix && s.legacy() { // the library skips the prefix of a text that begins with it, SentencePiece does not
		replace(object{"Regex": `\A` + space}, space+space)
	}
	return list
}
