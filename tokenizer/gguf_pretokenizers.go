package tokenizer

import (
	"maps"
	"slices"
	"strings"
)

// preTokenizer is how a byte-level BPE cuts a text before it merges, as the models' own tokenizer.json says it.
type preTokenizer struct {
	splits       []string // regular expressions, one after the other: what each finds is a piece of its own
	digits       bool     // then each digit is a piece
	words        bool     // then the expression of ByteLevel itself, which is GPT-2's
	nfc          bool     // the text is normalized
	ignoreMerges bool     // a piece that is a token is that token
	begin        bool     // BOS is added where the file does not say
	prefix       bool     // a text without a space before it gets one
}

const (
	contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	otherWords   = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|`
	otherRest    = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// A word with its upper letters first, as o200k and tekken cut it.
	upper = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	lower = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
	begin = `[^\r\n\p{L}\p{N}]?`
	slash = `| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// preTokenizers are those that llama.cpp names in tokenizer.ggml.pre (llm_tokenizer_bpe and load_vocab in llama-vocab.cpp) and whose
// tokenizer.json is known.
func preTokenizers() map[string]preTokenizer {
	words := func(numbers string) []string { return []string{otherWords + numbers + otherRest} }
	byCase := func(end, numbers string) []string {
		return []string{begin + upper + `*` + lower + `+` + end + `|` + begin + upper + `+` + lower + `*` + end + `|` + numbers + slash}
	}
	llama3 := preTokenizer{splits: words(`\p{N}{1,3}`), ignoreMerges: true, begin: true}
	cl100k := preTokenizer{splits: words(`\p{N}{1,3}`)}
	gpt2 := preTokenizer{words: true}
	neox := preTokenizer{words: true, nfc: true}
	starcoder := preTokenizer{digits: true, words: true}
	qwen2 := preTokenizer{splits: words(`\p{N}`), nfc: true}
	o200k := preTokenizer{splits: byCase(contractions+`?`, `\p{N}{1,3}`)}
	deepseek3 := preTokenizer{splits: []string{
		`\p{N}{1,3}`,
		`[一-龥\x{3040}-ゟ゠-ヿ]+`,
		"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" +
			`\s*[\r\n]+|\s+(?!\S)|\s+`,
	}}
	return map[string]preTokenizer{
		"gpt-2": gpt2, "phi-2": gpt2, "jais": gpt2, "exaone4": gpt2,
		"olmo": neox, "mpt": neox,
		"smollm": starcoder, "starcoder": starcoder, "refact": starcoder,
		"command-r": {digits: true, words: true, nfc: true},
		"llama-bpe": llama3, "llama3": llama3, "llama-v3": llama3, "lfm2": llama3, "pixtral": llama3,
		"dbrx": cl100k, "smaug-bpe": cl100k, "glm4": cl100k, "chatglm-bpe": cl100k,
		"qwen2": qwen2, "deepseek-r1-qwen": qwen2, "megrez": qwen2, "stablelm2": {splits: words(`\p{N}`)},
		"qwen35": {nfc: true, splits: []string{contractions + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`}},
		"gpt-4o": o200k, "llama4": o200k, "minimax-m2": o200k,
		"tekken":      {splits: byCase(``, `\p{N}`), ignoreMerges: true, begin: true},
		"seed-coder":  {splits: []string{otherWords + `\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+`}},
		"deepseek-v3": deepseek3, "hunyuan-dense": deepseek3, "joyai-llm": deepseek3,
		"deepseek-coder": {splits: []string{`[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, `[一-龥ࠀ-一가-퟿]+`}, digits: true},
	}
}

// preTokenizerNames lists the names that are known, for messages.
func preTokenizerNames() string {
	return strings.Join(slices.Sorted(maps.Keys(preTokenizers())), ", ")
}

// stages spells a pre-tokenizer as tokenizer.json does.
func (p *preTokenizer) stages() object {
	var list []object
	for _, s := range p.splits {
		list = append(list, object{"type": "Split", "pattern": object{"Regex": s}, "behavior": "Isolated", "invert": false})
	}
	if p.digits {
		list = append(list, object{"type": "Digits", "individual_digits": true})
	}
	list = append(list, object{"type": "ByteLevel", "add_prefix_space": p.prefix, "trim_offsets": true, "use_regex": p.words})
	if len(list) == 1 {
		return list[0]
	}
	return object{"type": "Sequence", "pretokenizers": list}
}
