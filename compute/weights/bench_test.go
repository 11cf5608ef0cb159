package weights

import "testing"

// BenchmarkLayer is one core unpacking 64 outputs of a GPTQ or AWQ layer of
// 4096 inputs, as blocks and as F16.
func BenchmarkLayer(b *testing.B) {
	const in, out, group = 4096, 64, 128
	words, zeros := make([]byte, in*out/2), make([]byte, in/group*out/2)
	for name, set := range map[string]func(*scaled){
		"GPTQ": func(s *scaled) { s.gptq(&Quantization{Bits: 4}, words, zeros) },
		"AWQ":  func(s *scaled) { s.awq(words, zeros) },
	} {
		s := &scaled{out: out, in: in, rows: 1, columns: group, across: in / group, high: 15, scale: func(int) float32 { return 1 }}
		set(s)
		kept, fill, _ := s.kept()
		dst := make([]byte, 2*in*out)
		for as, fill := range map[string]func(){
			kept.String(): func() { fill(dst, 0, out) },
			"F16":         func() { s.fill(dst, 0, out) },
		} {
			b.Run(name+"/"+as, func(b *testing.B) {
				b.SetBytes(in * out)
				for range b.N {
					fill()
				}
			})
		}
	}
}
