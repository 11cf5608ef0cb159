package numerics

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
)

// PromptTokens is the length of the probe's sequence: over two of the blocks, of 64 tokens, in
// which attention takes keys, and neither a multiple of a slab nor of a tile of rows.
const PromptTokens = 133

// Prompt is the probe's prompt for a model: ids from all over the vocabulary, at most as
// many as the model has positions.
func Prompt(vocab, positions int) []int32 {
	tokens := make([]int32, min(PromptTokens, positions))
	state := uint32(1)
	for i := range tokens {
		state = state*1664525 + 1013904223 // Knuth's generator: the same ids everywhere
		tokens[i] = int32(uint64(state) * uint64(vocab) >> 32)
	}
	return tokens
}

// Bits hashes the bits of logits, in hexadecimal.
func Bits(logits []float32) string {
	h := sha256.New()
	var b [4]byte
	for _, x := range logits {
		binary.LittleEndian.PutUint32(b[:], math.Float32bits(x))
		h.Write(b[:])
	}
	return hex.EncodeToString(h.Sum(nil))
}
