package weights

import (
	"fmt"
	"maps"
	"math/bits"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	torchFile      = "pytorch_model.bin"
	torchIndexFile = "pytorch_model.bin.index.json"

	pickleEntry = "data.pkl" // in the archive's only folder
)

// isTorch says whether a file of weights is one of torch.save.
func isTorch(name string) bool { return path.Ext(name) == ".bin" }

// torchTensors reads a file of torch.save: a zip archive of a pickled state dict and of its storages. The tensors' Data are slices of the
// file, but those of tensors whose elements do not lie in order: these are copied, in memory outside of the Go heap.
func (c *Checkpoint) torchTensors(file []byte) (map[string]Tensor, error) {
	entries, err := zipEntries(file)
	if err != nil {
		return nil, err
	}
	folder, err := torchFolder(entries)
	if err != nil {
		return nil, err
	}
	views, err := readPickle(entries[folder+pickleEntry])
	if err != nil {
		return nil, err
	}
	tensors := make(map[string]Tensor, len(views))
	strided := map[string][]byte{} // storages from the view's first element on
	for _, name := range slices.Sorted(maps.Keys(views)) {
		v := views[name]
		data, ok := entries[folder+"data/"+v.storage.key]
		if !ok {
			return nil, fault(name, "its storage, entry data/"+v.storage.key, "no such entry")
		}
		t, inOrder, err := v.tensor(name, data)
		if err != nil {
			return nil, err
		}
		if !inOrder {
			strided[name] = t.Data
		}
		tensors[name] = t
	}
	return tensors, c.copyStrided(tensors, strided, views, len(file))
}

// torchFolder is the folder of an archive's entries, with a slash.
func torchFolder(entries map[string][]byte) (string, error) {
	for name := range entries {
		folder, ok := strings.CutSuffix(name, pickleEntry)
		if !ok || strings.Count(folder, "/") != 1 || !strings.HasSuffix(folder, "/") {
			continue
		}
		if order, ok := entries[folder+"byteorder"]; ok && string(order) != "little" {
			return "", fault("byteorder", "little", "%.20q", order)
		}
		return folder, nil
	}
	return "", fault("", "FOLDER/"+pickleEntry+", as torch.save writes it", "an archive of %d entries without it", len(entries))
}

// tensor is the view of a storage. Data of a view whose elements are not in order begins with its first element.
func (v *view) tensor(name string, data []byte) (t Tensor, inOrder bool, err error) {
	s := v.storage
	size := typeBytes(s.kind)
	t = Tensor{Name: name, Type: s.kind, DType: dtypeOf(s.kind), Shape: v.shape}
	if s.elements > int64(len(data))/size || s.elements*size != int64(len(data)) {
		return t, false, fault(name, fmt.Sprintf("%d of %s, its storage's", s.elements, s.kind), "%d bytes in entry data/%s", len(data),
			s.key)
	}
	elements, err := v.count(name)
	if err != nil {
		return t, false, err
	}
	end, ok := v.end()
	if v.offset < 0 || !ok || elements > 0 && (end > s.elements-v.offset) || v.offset > s.elements {
		return t, false, fault(name, fmt.Sprintf("elements within the %d of its storage", s.elements),
			"shape %v, strides %v, offset %d", v.shape, v.stride, v.offset)
	}
	inOrder = v.inOrder()
	if !inOrder {
		t.Data = data[v.offset*size:]
		return t, false, nil
	}
	begin := v.offset * size
	t.Data = data[begin : begin+elements*size : begin+elements*size]
	return t, true, nil
}

// count is the number of elements.
func (v *view) count(name string) (int64, error) {
	t := Tensor{Name: name, Type: v.storage.kind, Shape: v.shape}
	n := int64(1)
	for _, d := range v.shape {
		hi, lo := bits.Mul64(uint64(n), uint64(d))
		if d < 0 || hi != 0 || lo > 1<<56 {
			return 0, fault(name, "dimensions >= 0, and fewer than 2^56 elements", "shape %v", v.shape)
		}
		n = int64(lo)
	}
	return n, checkSize(t, n*typeBytes(t.Type))
}

// end is one above the largest index of an element, from the offset on. Tensors without elements have none. It is false where a stride is
// negative or the sum does not fit.
func (v *view) end() (int64, bool) {
	last := uint64(0)
	for i, d := range v.shape {
		if v.stride[i] < 0 {
			return 0, false
		}
		if d == 0 {
			continue
		}
		hi, lo := bits.Mul64(uint64(d-1), uint64(v.stride[i]))
		if hi != 0 || lo > 1<<56 {
			return 0, false
		}
		last += lo
	}
	return int64(last) + 1, true
}

// inOrder says whether elements lie in a row, as in a tensor of the other formats.
func (v *view) inOrder() bool {
	if slices.Contains(v.shape, 0) {
		return true
	}
	step := int64(1)
	for i, d := range slices.Backward(v.shape) {
		if d != 1 && v.stride[i] != step {
			return false
		}
		step *= d
	}
	return true
}

// copyStrided puts the elements of tensors in order, such as those of a transposed matrix. All copies together take no more bytes than the
// file has: views may repeat elements without end.
func (c *Checkpoint) copyStrided(tensors map[string]Tensor, storages map[string][]byte, views map[string]*view, most int) error {
	total := int64(0)
	sizeOf := func(t Tensor) int64 { return typeBytes(t.Type) * t.elements() }
	names := slices.Sorted(maps.Keys(storages))
	for _, name := range names {
		n := sizeOf(tensors[name])
		if n > int64(most)-total {
			return fault(name, fmt.Sprintf("%d at most, the size of the file", most),
				"%d bytes of elements that do not lie in order, after %d", n, total)
		}
		total += n
	}
	if total == 0 {
		return nil
	}
	memory, err := unix.Mmap(-1, 0, int(total), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("%s: map %d bytes for its tensors: %w", c.dir, total, err)
	}
	c.memory = append(c.memory, memory)
	for _, name := range names {
		t := tensors[name]
		n := sizeOf(t)
		t.Data, memory = memory[:n:n], memory[n:]
		gather(t.Data, storages[name], t.Shape, views[name].stride, typeBytes(t.Type))
		tensors[name] = t
	}
	return nil
}

// gather writes elements of size bytes in order, and returns what is left of dst.
func gather(dst, from []byte, shape, stride []int64, size int64) []byte {
	if len(shape) == 0 {
		return dst[copy(dst, from[:size]):]
	}
	for i := range shape[0] {
		dst = gather(dst, from[i*stride[0]*size:], shape[1:], stride[1:], size)
	}
	return dst
}
