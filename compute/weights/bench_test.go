package weights

import "testing"

// BenchmarkLayer is one core unpacking 64 outputs of a GPTQ or AWQ layer of
// 4096 inputs.
func BenchmarkLayer(b *testing.B) {
	const in, out, group = 4096, 64, 128
	l := &layer{in: in, out: out, pack: 8, bits: 4, words: make([]byte, in*out/2), zeros: make([]byte, in/group*out/2),
		scales: Tensor{DType: F16, Data: make([]byte, 2*in/group*out)}, group: make([]int32, in)}
	for k := range l.group {
		l.group[k] = int32(k / group)
	}
	dst := make([]byte, 2*in*out)
	for name, fill := range map[string]func([]byte, int64, int64){"GPTQ": l.fillGPTQ, "AWQ": l.fillAWQ} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(dst)))
			for range b.N {
				fill(dst, 0, out)
			}
		})
	}
}
