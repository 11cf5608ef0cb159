package weights

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// derived is a tensor that the file holds in another form: quantized, or with other values. Its data is made at its first use, by all
// cores, in memory outside of the Go heap.
type derived struct {
	Tensor
	making sync.Mutex
	users  int                                 // who use the data: without one it is not there
	fill   func(dst []byte, first, last int64) // rows [first, last) of the row-major result, at dst[0]
	floats func(dst []byte, first, last int64) // of one in blocks: fill for its values as F16
}

// Quantized values become F16: its 11 significant bits keep the products
// scale x integer to 1/2048, an eighth of the rounding of BF16, at half the
// size of F32. Scales are F16 themselves, so that nothing is lost below its
// range; what is above it becomes infinite.
const derivedType = F16

// parallelElements is about the number of elements that is worth a goroutine.
const parallelElements = 1 << 16

// derive adds tensors to a checkpoint and reserves the addresses of their data.
func (c *Checkpoint) derive(tensors []*derived) error {
	total := int64(0)
	for _, d := range tensors {
		total += pages(d.bytes()) + pages(int64(len(d.Order)))
	}
	if total == 0 {
		return nil
	}
	// Reserved only: a page takes memory when a tensor is made.
	memory, err := unix.Mmap(-1, 0, int(total), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("%s: map %d bytes for its tensors: %w", c.dir, total, err)
	}
	c.memory = append(c.memory, memory)
	if c.derived == nil {
		c.derived = map[string]*derived{}
	}
	for _, d := range tensors {
		n := d.bytes()
		d.Data, memory = memory[:n:pages(n)], memory[pages(n):]
		if n = int64(copy(memory, d.Order)); n > 0 { // it stays when the data is forgotten
			d.Order, memory = memory[:n:n], memory[pages(n):]
		}
		c.derived[d.Name] = d
	}
	return nil
}

// Replace gives tensors other values: those that f gives for their own, in F32. A name that is not there, or of a tensor of no floats, is
// left out: its use is the error.
func (c *Checkpoint) Replace(names []string, f func(float32) float32) error {
	var all []*derived
	for _, name := range names {
		t, ok := c.tensors[name]
		if !ok || len(t.Shape) == 0 || !t.DType.Floats() {
			continue
		}
		from, width := t, t.elements()/max(1, t.Shape[0])
		t.DType, t.Type = F32, F32.String()
		all = append(all, &derived{Tensor: t, fill: func(dst []byte, first, last int64) {
			for i := first * width; i < last*width; i++ {
				binary.LittleEndian.PutUint32(dst[4*(i-first*width):], math.Float32bits(f(number(from, int(i)))))
			}
		}})
	}
	return c.derive(all)
}

// Scale multiplies the rows of matrices, or the elements of vectors, in F32. by returns the factor of each row of a tensor, nil for one
// that stays.
func (c *Checkpoint) Scale(by func(name string) func(row int64) float32) error {
	var all []*derived
	for name, t := range c.tensors {
		factor := by(name)
		rank := len(t.Shape)
		if factor == nil || rank != 1 && rank != 2 || !t.DType.Floats() {
			continue
		}
		from, width := t, int64(1)
		if rank == 2 {
			width = t.Shape[1]
		}
		t.DType, t.Type = F32, F32.String()
		all = append(all, &derived{Tensor: t, fill: func(dst []byte, first, last int64) {
			for row := first; row < last; row++ {
				f := factor(row)
				for i := row * width; i < (row+1)*width; i++ {
					binary.LittleEndian.PutUint32(dst[4*(i-first*width):], math.Float32bits(f*number(from, int(i))))
				}
			}
		}})
	}
	slices.SortFunc(all, func(a, b *derived) int { return cmp.Compare(a.Name, b.Name) })
	return c.derive(all)
}

// NormalizeRows divides the rows of a matrix by their lengths, in F32. A row of zeros stays. A name that is not there, or of another shape
// or of no floats, is left out: its use is the error.
func (c *Checkpoint) NormalizeRows(name string) error {
	t, ok := c.tensors[name]
	if !ok || len(t.Shape) != 2 || !t.DType.Floats() {
		return nil
	}
	from, width := t, t.Shape[1]
	t.DType, t.Type = F32, F32.String()
	return c.derive([]*derived{{Tensor: t, fill: func(dst []byte, first, last int64) {
		for row := first; row < last; row++ {
			squares := 0.0
			for i := row * width; i < (row+1)*width; i++ {
				v := float64(number(from, int(i)))
				squares += v * v
			}
			length := float32(max(math.Sqrt(squares), 1e-12)) // as torch's normalize
			for i := row * width; i < (row+1)*width; i++ {
				binary.LittleEndian.PutUint32(dst[4*(i-first*width):], math.Float32bits(number(from, int(i))/length))
			}
		}
	}}})
}

// Add adds a tensor in F32 that the file does not have. value gives its elements, in order.
func (c *Checkpoint) Add(name string, shape []int64, value func(i int64) float32) error {
	d := &derived{Tensor: Tensor{Name: name, File: c.dir, DType: F32, Type: F32.String(), Shape: shape}}
	width := d.elements() / max(1, shape[0])
	d.fill = func(dst []byte, first, last int64) {
		for i := first * width; i < last*width; i++ {
			binary.LittleEndian.PutUint32(dst[4*(i-first*width):], math.Float32bits(value(i)))
		}
	}
	return c.derive([]*derived{d})
}

// elements is the number of a tensor's elements. The shape was checked.
func (t Tensor) elements() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Number is the value of a tensor of one float; false for another one.
func (t Tensor) Number() (float32, bool) {
	for _, n := range t.Shape {
		if n != 1 {
			return 0, false
		}
	}
	if !t.DType.Floats() || int64(len(t.Data)) != t.DType.Bytes(1) {
		return 0, false
	}
	return number(t, 0), true
}

// ColumnLengths are the Euclidean lengths of the columns of a matrix of floats; nil if there is none of the name.
func (c *Checkpoint) ColumnLengths(name string) []float32 {
	t, ok := c.Tensor(name)
	defer func() { _ = c.Forget([]string{name}) }() // else its memory stays
	if !ok || len(t.Shape) != 2 || !t.DType.Floats() {
		return nil
	}
	squares := make([]float64, t.Shape[1])
	for i := range int(t.elements()) {
		x := float64(number(t, i))
		squares[i%len(squares)] += x * x
	}
	lengths := make([]float32, len(squares))
	for i, sum := range squares {
		lengths[i] = float32(math.Sqrt(sum))
	}
	return lengths
}

// Rename gives tensors other names: names are those that they have, to the new ones. A name that is not there is left out.
func (c *Checkpoint) Rename(names map[string]string) {
	for from, to := range names {
		if t, ok := c.tensors[from]; ok {
			t.Name, c.tensors[to] = to, t
			delete(c.tensors, from)
		}
		if d, ok := c.derived[from]; ok {
			d.Name, c.derived[to] = to, d
			delete(c.derived, from)
		}
	}
}

// bytes is the size of the data. The shape was checked against the file.
func (d *derived) bytes() int64 {
	return d.DType.Bytes(d.elements())
}

func pages(n int64) int64 {
	page := int64(os.Getpagesize())
	return (n + page - 1) / page * page
}

// use fills the data in for the first user.
func (d *derived) use() {
	d.making.Lock()
	defer d.making.Unlock()
	if d.users++; d.users > 1 {
		return
	}
	rows := d.Shape[0]
	if rows == 0 || len(d.Data) == 0 {
		return
	}
	row := int64(len(d.Data)) / rows
	share := (rows + int64(runtime.GOMAXPROCS(0)) - 1) / int64(runtime.GOMAXPROCS(0))
	share = max(share, d.DType.Bytes(parallelElements)/row, 1)
	var all sync.WaitGroup
	for first := int64(0); first < rows; first += share {
		last := min(first+share, rows)
		all.Go(func() { d.fill(d.Data[first*row:last*row], first, last) })
	}
	all.Wait()
}

// forget gives the memory of the data back after the last user.
func (d *derived) forget() error {
	d.making.Lock()
	defer d.making.Unlock()
	if d.users--; d.users > 0 || len(d.Data) == 0 {
		return nil
	}
	return unix.Madvise(d.Data[:pages(int64(len(d.Data)))], unix.MADV_DONTNEED) // within its reservation
}

// floatRows returns a tensor of floats, and its rows [first, last): those of a layer whose data are blocks as F16. false: there is none.
func (c *Checkpoint) floatRows(name string) (Tensor, func(first, last int64) []byte, bool) {
	t, ok := c.Describe(name)
	if d := c.derived[name]; ok && d != nil && d.floats != nil {
		t.DType = derivedType
		return t, func(first, last int64) []byte {
			rows := make([]byte, t.DType.Bytes((last-first)*t.elements()/t.Shape[0]))
			d.floats(rows, first, last)
			return rows
		}, true
	}
	return t, func(first, last int64) []byte {
		source, _ := c.Tensor(name)
		row := int64(len(source.Data)) / max(1, source.Shape[0])
		return source.Data[first*row : last*row]
	}, ok && t.DType.Floats()
}

// halfToFloat is the value of an IEEE binary16.
func halfToFloat(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exponent, fraction := uint32(h>>10)&31, uint32(h&0x3ff)
	switch exponent {
	case 0: // zero and subnormals: fraction x 2^-24
		return math.Float32frombits(math.Float32bits(float32(fraction)*(1.0/(1<<24))) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}

// floatToHalf rounds to the nearest IEEE binary16, ties to even.
func floatToHalf(f float32) uint16 {
	b := math.Float32bits(f)
	sign, b := uint16(b>>16)&0x8000, b&0x7fffffff
	switch {
	case b > 0x7f800000: // NaN
		return sign | 0x7e00
	case b >= 0x47800000: // 2^16 and above
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14: adding 1/2 leaves multiples of 2^-24 in the fraction
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-0x3f000000)
	}
	b += 0xfff + b>>13&1
	return sign | uint16((b-0x38000000)>>13)
}

func readHalf(b []byte) float32 { return halfToFloat(binary.LittleEndian.Uint16(b)) }

// putHalf writes element i of a row of F16.
func putHalf(row []byte, i int, f float32) {
	binary.LittleEndian.PutUint16(row[2*i:], floatToHalf(f))
}

func readFloat(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }

func bfloatToFloat(b []byte) float32 {
	return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)
}

// number is element i of a tensor of floats.
func number(t Tensor, i int) float32 {
	switch t.DType {
	case F16:
		return readHalf(t.Data[2*i:])
	case BF16:
		return bfloatToFloat(t.Data[2*i:])
	case F32, Other: // Other was refused
	}
	return readFloat(t.Data[4*i:])
}
