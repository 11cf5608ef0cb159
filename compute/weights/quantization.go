package weights

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// Quantization is the quantization_config of a config.json.
type Quantization struct {
	Method     string `json:"quant_method"` // "gptq", "awq"
	Bits       int    `json:"bits"`
	GroupSize  int    `json:"group_size"` // inputs that share a scale; -1: all
	DescAct    bool   `json:"desc_act"`   // gptq: inputs are in groups by g_idx
	Checkpoint string `json:"checkpoint_format"`
	Version    string `json:"version"` // awq: the layout
}

// ParseQuantization reads a quantization_config and refuses what no layer can
// be read by. Faults are *FormatError of the file.
func ParseQuantization(file string, raw []byte) (*Quantization, error) {
	var q Quantization
	if err := json.Unmarshal(raw, &q); err != nil {
		return nil, &FormatError{File: file, Name: "quantization_config", Found: JSONFault(err), Expected: "an object with quant_method, bits and group_size"}
	}
	bad := func(name, expected, found string, args ...any) error {
		f := fault("quantization_config."+name, expected, found, args...)
		f.File = file
		return f
	}
	switch {
	case q.Method != "gptq" && q.Method != "awq":
		return nil, bad("quant_method", "gptq or awq", "%.40q", q.Method)
	case q.Method == "gptq" && q.Bits != 4 && q.Bits != 8:
		return nil, bad("bits", "4 or 8", "%d", q.Bits)
	case q.Method == "awq" && q.Bits != 4:
		return nil, bad("bits", "4", "%d", q.Bits)
	case q.GroupSize != -1 && q.GroupSize < 1:
		return nil, bad("group_size", "-1 or at least 1", "%d", q.GroupSize)
	case q.Method == "gptq" && !slices.Contains([]string{"", "gptq", "gptq_v2"}, q.Checkpoint):
		return nil, bad("checkpoint_format", "gptq or gptq_v2", "%.40q", q.Checkpoint)
	case q.Method == "awq" && !slices.Contains([]string{"", "gemm"}, strings.ToLower(q.Version)):
		return nil, bad("version", "gemm", "%.40q", q.Version)
	}
	return &q, nil
}

// deriveQuantized adds the matrices NAME.weight that NAME.qweight, .qzeros,
// .scales and .g_idx stand for, where config.json says that there are such.
func (c *Checkpoint) deriveQuantized() error {
	path := filepath.Join(c.dir, configFile)
	raw, err := ReadText(path)
	if errors.Is(err, fs.ErrNotExist) { // the model's reader says so
		return nil
	}
	if err != nil {
		return err
	}
	var config struct {
		Quantization json.RawMessage `json:"quantization_config"`
	}
	if err := json.Unmarshal(PythonJSON(raw), &config); err != nil || len(config.Quantization) == 0 || string(config.Quantization) == "null" {
		return nil //nolint:nilerr // the model's reader says what is wrong with a config.json
	}
	q, err := ParseQuantization(path, config.Quantization)
	if err != nil {
		return err
	}
	var all []*derived
	for _, name := range slices.Sorted(maps.Keys(c.tensors)) {
		layer, ok := strings.CutSuffix(name, ".qweight")
		if !ok {
			continue
		}
		d, err := c.quantizedLayer(q, layer)
		if err != nil {
			return in(c.tensors[name].File, err)
		}
		all = append(all, d)
	}
	return c.derive(all)
}

// layer is a quantized linear layer, weight [in, out], transposed to the
// [out, in] of the rest.
type layer struct {
	in, out, pack, bits int // pack: values per word
	words, zeros        []byte
	scales              Tensor // [groups, out]
	group               []int32
	zeroOffset          uint32
}

// quantizedLayer checks the tensors of a layer against each other. Layouts:
// QuantLinear.pack of AutoGPTQ (qlinear_cuda.py) and WQLinear_GEMM of AutoAWQ
// (awq/modules/linear/gemm.py).
func (c *Checkpoint) quantizedLayer(q *Quantization, name string) (*derived, error) {
	words, zeros, scales := c.tensors[name+".qweight"], c.tensors[name+".qzeros"], c.tensors[name+".scales"]
	if _, twice := c.tensors[name+".weight"]; twice {
		return nil, fault(name, "one of .weight and .qweight", "both")
	}
	for part, t := range map[string]Tensor{".qweight": words, ".qzeros": zeros} {
		if t.Type != "I32" || len(t.Shape) != 2 {
			return nil, fault(name+part, "I32 of two dimensions", "%s", kindOf(t))
		}
	}
	if scales.DType == Other || scales.Data == nil || len(scales.Shape) != 2 {
		return nil, fault(name+".scales", "F16, BF16 or F32 of two dimensions", "%s", kindOf(scales))
	}
	l := &layer{bits: q.Bits, pack: 32 / q.Bits, words: words.Data, zeros: zeros.Data, scales: scales}
	groups, out := scales.Shape[0], scales.Shape[1]
	in, packed := words.Shape[0]*int64(l.pack), [2]int64{words.Shape[0], out}
	if q.Method == "awq" {
		in, packed = words.Shape[0], [2]int64{words.Shape[0], out / int64(l.pack)}
	}
	if in < 1 || out < 1 || out%int64(l.pack) != 0 || words.Shape[1] != packed[1] {
		return nil, fault(name+".qweight", fmt.Sprintf("%v, by the %d outputs of .scales and %d bits", packed, out, q.Bits), "shape %v", words.Shape)
	}
	size := int64(q.GroupSize)
	if size < 0 {
		size = in
	}
	if want := (in + size - 1) / size; groups != want {
		return nil, fault(name+".scales", fmt.Sprintf("%d groups of %d for %d inputs", want, size, in), "shape %v", scales.Shape)
	}
	if want := []int64{groups, out / int64(l.pack)}; !slices.Equal(zeros.Shape, want) {
		return nil, fault(name+".qzeros", fmt.Sprint(want), "shape %v", zeros.Shape)
	}
	l.in, l.out = int(in), int(out)
	if err := l.groups(q, name, c.tensors[name+".g_idx"], size, groups); err != nil {
		return nil, err
	}
	d := &derived{Tensor: Tensor{Name: name + ".weight", DType: derivedType, Type: strings.ToUpper(q.Method), Shape: []int64{out, in}, File: words.File}}
	if q.Method == "awq" {
		d.fill = l.fillAWQ
	} else {
		if q.Checkpoint != "gptq_v2" {
			l.zeroOffset = 1 // the first version stores zeros less 1
		}
		d.fill = l.fillGPTQ
	}
	return d, nil
}

func kindOf(t Tensor) string {
	if t.Type == "" {
		return "no such tensor"
	}
	return fmt.Sprintf("%s %v", t.Type, t.Shape)
}

// groups sets the group of each input.
func (l *layer) groups(q *Quantization, name string, index Tensor, size, groups int64) error {
	l.group = make([]int32, l.in)
	if index.Type == "" || q.Method == "awq" {
		if q.DescAct && q.Method == "gptq" && groups > 1 {
			return fault(name+".g_idx", "one, by desc_act", "no such tensor")
		}
		for k := range l.group {
			l.group[k] = int32(int64(k) / size)
		}
		return nil
	}
	if index.Type != "I32" || !slices.Equal(index.Shape, []int64{int64(l.in)}) {
		return fault(name+".g_idx", fmt.Sprintf("I32 [%d]", l.in), "%s", kindOf(index))
	}
	for k := range l.group {
		g := int32(binary.LittleEndian.Uint32(index.Data[4*k:]))
		if g < 0 || int64(g) >= groups {
			return fault(name+".g_idx", fmt.Sprintf("0 to %d", groups-1), "group %d of input %d", g, k)
		}
		l.group[k] = g
	}
	return nil
}

// scale is the scale of group g and output n.
func (l *layer) scale(g int32, n int) float32 {
	i := int(g)*l.out + n
	switch l.scales.DType {
	case F16:
		return readHalf(l.scales.Data[2*i:])
	case BF16:
		return bfloatToFloat(l.scales.Data[2*i:])
	case F32, Other: // Other was refused
	}
	return readFloat(l.scales.Data[4*i:])
}

// word is word i of a tensor of I32.
func word(b []byte, i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }

// fillGPTQ: a word holds neighboring inputs of one output, the first one
// lowest; of zeros, neighboring outputs. x = scale (q - zero).
func (l *layer) fillGPTQ(dst []byte, first, last int64) {
	mask := uint32(1)<<l.bits - 1
	for n := int(first); n < int(last); n++ {
		row := dst[2*(n-int(first))*l.in:]
		group, scale, zero := int32(-1), float32(0), uint32(0)
		for k := range l.in {
			if g := l.group[k]; g != group {
				group, scale = g, l.scale(g, n)
				zero = (word(l.zeros, (int(g)*l.out+n)/l.pack)>>(n%l.pack*l.bits) + l.zeroOffset) & mask
			}
			q := word(l.words, k/l.pack*l.out+n) >> (k % l.pack * l.bits) & mask
			putHalf(row, k, scale*float32(int(q)-int(zero)))
		}
	}
}

// fillAWQ: a word holds eight neighboring outputs of one input, of zeros and
// weights alike, the even ones below the odd ones. x = scale (q - zero).
func (l *layer) fillAWQ(dst []byte, first, last int64) {
	for n := int(first); n < int(last); n++ {
		row := dst[2*(n-int(first))*l.in:]
		j := n % 8
		shift := 4 * (j/2 + 4*(j%2))
		group, scale, zero := int32(-1), float32(0), 0
		for k := range l.in {
			if g := l.group[k]; g != group {
				group, scale = g, l.scale(g, n)
				zero = int(word(l.zeros, (int(g)*l.out+n)/8) >> shift & 15)
			}
			q := int(word(l.words, (k*l.out+n)/8) >> shift & 15)
			putHalf(row, k, scale*float32(q-zero))
		}
	}
}
