// Package sample turns logits into tokens: a pure function of the logits, the
// parameters, the tokens so far and (seed, position).
package sample

// Params are the sampling parameters of a request. The zero value of a field
// other than Temperature means "off"; see Default.
type Params struct {
	Temperature       float32 // 0: greedy
	TopK              int     // 0: off
	TopP              float32 // 1 (or 0): off
	MinP              float32 // 0: off
	TypicalP          float32 // 1 (or 0): off
	RepetitionPenalty float32 // 1 (or 0): off; over prompt and output, as transformers
	PresencePenalty   float32 // over output, as OpenAI
	FrequencyPenalty  float32
	LogitBias         map[int32]float32
	Seed              uint64
}

// Default is OpenAI's default: temperature 1, nothing cut off.
func Default() Params { return Params{Temperature: 1, TopP: 1, TypicalP: 1, RepetitionPenalty: 1} }
