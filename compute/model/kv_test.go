package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKVTypeNamesGoBothWays(t *testing.T) {
	for _, name := range KVTypeNames() {
		kv, err := ParseKVType(name)
		require.NoError(t, err)
		require.Equal(t, name, kv.String())
	}
	kv, err := ParseKVType("")
	require.NoError(t, err)
	require.Equal(t, KVAuto, kv)
	_, err = ParseKVType("int3")
	require.EqualError(t, err, `KV type "int3", expected auto, f16, bf16, int8, int4, kivi`)
}

// A key of 64 elements: int8 has a float32 scale, int4 two bf16 ones; one of 40 fills two
// groups, and one of 32 half a cache line of scales for 16 tokens. KIVI has two bits, and 16 bits for each scale and zero.
func TestKeysAndValuesAreCountedWithTheirScales(t *testing.T) {
	for kv, want := range map[KVType][3]int64{
		KVAuto: {128, 80, 64}, KVBF16: {128, 80, 64}, KVInt8: {68, 44, 36}, KVInt4: {36, 36, 20}, KVKivi: {24, 20, 12},
	} {
		for i, headDim := range []int{64, 40, 32} {
			require.Equal(t, want[i], kv.bytes(headDim, 2), "%v, heads of %d", kv, headDim)
		}
	}
	p := &Program{Layers: 3, KVHeads: 2, HeadDim: 64, KV: KVInt8}
	require.EqualValues(t, 2*3*2*68, p.KVBytesPerToken(BF16Sizes()))
}
