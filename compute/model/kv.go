package model

import (
	"fmt"
	"slices"
	"strings"
)

// KVType is how the KV cache keeps keys and values; it mirrors mr_kv_type.
type KVType int32

// Types of the KV cache.
const (
	KVAuto KVType = 0 // floats of the backend's choice
	KVF16  KVType = 2
	KVBF16 KVType = 3
	KVInt8 KVType = 4 // a float32 scale for each token's key and value of a head
	KVInt4 KVType = 5 // a bf16 scale for each 32 elements

	// KVKivi has 2 bits (arXiv:2402.02750): keys for each channel over 32 tokens, values for each token; the last 32 to 63 tokens are bf16.
	KVKivi KVType = 6
)

var kvNames = []string{KVAuto: "auto", KVF16: "f16", KVBF16: "bf16", KVInt8: "int8", KVInt4: "int4", KVKivi: "kivi"}

// ParseKVType finds a KVType by its name, see KVTypeNames; "" is auto.
func ParseKVType(name string) (KVType, error) {
	if name == "" {
		return KVAuto, nil
	}
	i := slices.Index(kvNames, name)
	if i < 0 {
		return 0, fmt.Errorf("KV type %q, expected %s", name, strings.Join(KVTypeNames(), ", "))
	}
	return KVType(i), nil
}

// KVTypeNames are the names that ParseKVType knows: auto, f16, bf16, int8, int4, kivi.
func KVTypeNames() []string {
	return slices.DeleteFunc(slices.Clone(kvNames), func(name string) bool { return name == "" })
}

func (t KVType) String() string {
	if t < 0 || int(t) >= len(kvNames) || kvNames[t] == "" {
		return fmt.Sprintf("KV type %d", int32(t))
	}
	return kvNames[t]
}

// bytes is the size of a token's key, or value, of one head, with its scales, where a
// float takes size bytes. Codes of 16 tokens are whole cache lines.
func (t KVType) bytes(headDim, size int) int64 {
	const line, tokens, group = 64, 16, 32
	var codes int
	switch t {
	case KVInt8:
		codes = tokens * (headDim + 4)
	case KVInt4:
		codes = tokens * ((headDim + group - 1) / group) * (group/2 + 2)
	case KVKivi: // a word for 16 tokens of an element; scales and zeros
		groups := (headDim + group - 1) / group
		codes = headDim*4 + max(headDim*2, groups*2*tokens*2)
	case KVAuto, KVF16, KVBF16:
		return int64(headDim * size)
	}
	return int64((codes + line - 1) / line * line / tokens)
}
