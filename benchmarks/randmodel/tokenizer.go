package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// special are the first tokens: config.json names them by id.
var special = []string{"<pad>", "<bos>", "<eos>"}

// minVocab holds the special tokens, a token per byte, and the pairs of letters
// without and with a space before them; maxVocab all words of four letters too.
const (
	minVocab = 3 + 256 + 2*26*26
	maxVocab = minVocab + 26*26*26*26
)

// writeTokenizer writes a byte-level BPE tokenizer of size ids, in the form of
// the tokenizers library. The vocabulary is not learned: bytes, pairs of
// letters, pairs after a space, and as many words of four letters as fit,
// evenly spread. English text comes to 2 or 3 tokens a word.
func writeTokenizer(dir string, size int) error {
	if size < minVocab || size > maxVocab {
		return fmt.Errorf("--vocab %d: expected %d to %d with --tokenizer", size, minVocab, maxVocab)
	}
	vocab := map[string]int{}
	add := func(token string) { vocab[token] = len(vocab) }
	var merges [][2]string
	merge := func(left, right string) {
		merges = append(merges, [2]string{left, right})
		add(left + right)
	}

	for _, s := range special {
		add(s)
	}
	letters := byteLetters()
	for _, r := range letters[:] {
		add(string(r))
	}
	var pairs []string
	for a := 'a'; a <= 'z'; a++ {
		for b := 'a'; b <= 'z'; b++ {
			merge(string(a), string(b))
			pairs = append(pairs, string([]rune{a, b}))
		}
	}
	for _, p := range pairs {
		merge(string(letters[' ']), p)
	}
	words := size - len(vocab)
	for i := range words {
		at := i * len(pairs) * len(pairs) / words
		merge(pairs[at/len(pairs)], pairs[at%len(pairs)])
	}
	return writeTokenizerFiles(dir, vocab, merges)
}

func writeTokenizerFiles(dir string, vocab map[string]int, merges [][2]string) error {
	added := make([]map[string]any, len(special))
	for id, s := range special {
		added[id] = map[string]any{
			"id": id, "content": s, "special": true,
			"single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
		}
	}
	byteLevel := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}
	files := map[string]any{
		"tokenizer.json": map[string]any{
			"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added,
			"normalizer": nil, "pre_tokenizer": byteLevel, "post_processor": nil, "decoder": byteLevel,
			"model": map[string]any{
				"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil,
				"end_of_word_suffix": nil, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
				"vocab": vocab, "merges": merges,
			},
		},
		"tokenizer_config.json": map[string]any{
			"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": special[0], "bos_token": special[1],
			"eos_token": special[2], "add_bos_token": false, "clean_up_tokenization_spaces": false,
		},
	}
	for name, content := range files {
		b, err := json.Marshal(content)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// byteLetters is the printable letter of each byte, as in GPT-2: printable
// bytes are themselves, the others follow from U+0100.
func byteLetters() [256]rune {
	var letters [256]rune
	next := rune(0x100)
	for b := range letters {
		switch {
		case b >= '!' && b <= '~', b >= 0xa1 && b <= 0xac, b >= 0xae:
			letters[b] = rune(b)
		default:
			letters[b] = next
			next++
		}
	}
	return letters
}
