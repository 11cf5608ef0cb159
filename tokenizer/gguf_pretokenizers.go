package tokenizer

import "strings"

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
	otherRest    = symbols + spaces
	symbols      = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+`
	spaces       = `|\s+(?!\S)|\s+`
	// A word with its upper letters first, as o200k and tekken cut it.
	upper = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	lower = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
	begin = `[^\r\n\p{L}\p{N}]?`
	slash = `| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+` + spaces
)

// preTokenizers are those that llama.cpp names in tokenizer.ggml.pre (llm_tokenizer_bpe and load_vocab in llama-vocab.cpp), as the models'
// own tokenizer.json has them where it is known. Not here are those of architectures that are not read, "default", which differs from any
// model's, and those of afmoe, tiny_aya and superbpe: at each digit these read all digits that follow.
func preTokenizers() map[string]preTokenizer {
	words := func(numbers string) []string { return []string{otherWords + numbers + otherRest} }
	byCase := func(end, numbers string) []string {
		return []string{begin + upper + `*` + lower + `+` + end + `|` + begin + upper + `+` + lower + `*` + end + `|` + numbers + slash}
	}
	llama3 := preTokenizer{splits: words(`\p{N}{1,3}`), ignoreMerges: true, begin: true}
	cl100k := preTokenizer{splits: words(`\p{N}{1,3}`)}
	glm4 := preTokenizer{splits: words(`\p{N}{1,3}`), ignoreMerges: true}
	gpt2 := preTokenizer{words: true}
	neox := preTokenizer{words: true, nfc: true}
	starcoder := preTokenizer{digits: true, words: true}
	qwen2 := preTokenizer{splits: words(`\p{N}`), nfc: true}
	stablelm2 := preTokenizer{splits: words(`\p{N}`)}
	o200k := preTokenizer{splits: byCase(contractions+`?`, `\p{N}{1,3}`)}
	bloom := []string{` ?[^(\s|.,!?…。，、।۔،)]+`}
	bailing := preTokenizer{splits: []string{`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]` + spaces}}
	const kana = `[一-龥\x{3040}-ゟ゠-ヿ]+`
	marked := func(rest string) string {
		return "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+" + rest + spaces
	}
	deepseek3 := preTokenizer{splits: []string{`\p{N}{1,3}`, kana, marked(`[\r\n]*|\s*[\r\n]+`)}}
	return map[string]preTokenizer{
		"gpt-2": gpt2, "phi-2": gpt2, "jais": gpt2, "exaone4": gpt2, "roberta-bpe": gpt2, "gigachat": gpt2, "a.x-4.0": gpt2, "mellum": gpt2,
		"trillion": gpt2, "granite-docling": gpt2, "olmo": neox, "mpt": neox,
		"smollm": starcoder, "starcoder": starcoder, "refact": starcoder, "codeshell": starcoder, "exaone": starcoder,
		"minerva-7b": starcoder, "mellum2": starcoder, "command-r": {digits: true, words: true, nfc: true},
		"llama-bpe": llama3, "llama3": llama3, "llama-v3": llama3, "lfm2": llama3, "pixtral": llama3, "falcon3": llama3,
		"falcon-h1": llama3, "midm-2.0": llama3, "dbrx": cl100k, "smaug-bpe": cl100k, "chatglm-bpe": cl100k, "glm4": glm4, "glm5": glm4,
		"qwen2": qwen2, "deepseek-r1-qwen": qwen2, "megrez": qwen2, "f2llmv2": qwen2,
		"stablelm2": stablelm2, "hunyuan": stablelm2, "solar-open": stablelm2, "kormo": stablelm2, "grok-2": stablelm2,
		"qwen35": {nfc: true,
			splits: []string{contractions + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+` + spaces}},
		"ufakzeka": {splits: []string{begin + `\p{L}+|\p{N}` + otherRest}}, // Turkish has suffixes after an apostrophe
		"laguna":   {splits: append([]string{`[^\n]+|[\n]+`}, words(`\p{N}`)...)},
		"minicpm5": {splits: append([]string{`\p{N}{1,3}`}, words(`\p{N}+`)...), ignoreMerges: true},
		"jais-2": {splits: []string{otherWords + `\p{N}{1,3}` + symbols +
			`|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}`}},
		"bailingmoe": bailing, "bailingmoe2": bailing, "llada-moe": bailing,
		"exaone-moe": {splits: []string{contractions + `|` + begin + `(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]` + spaces}},
		"gpt-4o":     o200k, "llama4": o200k, "minimax-m2": o200k, "kanana2": o200k, "talkie": o200k,
		"youtu": {ignoreMerges: true, splits: append([]string{`[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|` + kana},
			byCase(contractions+`?`, `\p{N}`)...)},
		"kimi-k2": {splits: []string{`\p{Han}+|` + strings.NewReplacer(`\p{M}]`, `\p{M}&&[^\p{Han}]]`, `[\r\n/]`, `[\r\n]`).Replace(
			byCase(contractions+`?`, `\p{N}{1,3}`)[0])}},
		"tekken":      {splits: byCase(``, `\p{N}`), ignoreMerges: true, begin: true},
		"seed-coder":  {splits: []string{otherWords + `\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+` + spaces}},
		"deepseek-v3": deepseek3, "hunyuan-dense": deepseek3, "joyai-llm": deepseek3, "hy_v4": deepseek3,
		"spark2_5":       {splits: []string{`\p{N}{1,3}`, kana, marked(`|[\r\n]`), `\p{N}`}},
		"deepseek-coder": {splits: []string{`[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, `[一-龥ࠀ-一가-퟿]+`}, digits: true},
		"deepseek-llm": {splits: []string{`[\r\n]`, `\s?` + deepseekLetters, `\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+`, `\s+$`, `[一-龥ࠀ-一가-퟿]+`},
			digits: true},
		"poro-chat": {splits: bloom}, "bloom": {splits: bloom}, "gpt3-finnish": {splits: bloom},
		"viking": {splits: bloom, digits: true},
	}
}

// deepseekLetters are those of the scripts with upper and lower letters.
const deepseekLetters = `[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+`

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
