package weights

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// GGUF is a GGUF file: its metadata, and its tensors with the names and the row order of a Layout.
type GGUF struct {
	*Checkpoint
	Metadata Metadata
	Path     string

	layout Layout
}

// Layout says how tensors of a GGUF file become those of another checkpoint.
type Layout struct {
	Name        func(tensor string) string // the name there; nil: as in the file
	Interleaved func(tensor string) int64  // the number of heads whose halves' rows alternate, see heads, 0: none; nil: of no tensor
}

// LayoutOf makes a file's layout from its metadata.
type LayoutOf func(Metadata) (Layout, error)

// name is a tensor's name by the layout.
func (l Layout) name(tensor string) string {
	if l.Name == nil {
		return tensor
	}
	return l.Name(tensor)
}

// IsGGUF says whether a model path names a GGUF file.
func IsGGUF(path string) bool { return strings.EqualFold(filepath.Ext(path), ".gguf") }

// ggufHeaderBytes: magic, version, two counts.
const ggufHeaderBytes = 24

// OpenGGUF maps a GGUF file with tensors of the types in blockTypes and checks
// its header. layout makes the layout from the metadata; nil: the file's own.
// Faults of the file are *FormatError.
func OpenGGUF(path string, layout LayoutOf) (*GGUF, error) {
	c := &Checkpoint{dir: path, tensors: map[string]Tensor{}}
	g := &GGUF{Checkpoint: c, Path: path}
	if err := g.open(layout); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return g, nil
}

// open reads the file, and the others of a model that was split into several.
func (g *GGUF) open(layout LayoutOf) error {
	names := map[string]bool{}
	parts, err := g.read(g.Path, 0, layout, names)
	if err != nil {
		return err
	}
	for i := int64(1); i < parts; i++ {
		path, err := ggufPart(g.Path, i, parts)
		if err != nil {
			return in(g.Path, err)
		}
		n, err := g.read(path, i, nil, names)
		if errors.Is(err, fs.ErrNotExist) {
			return &FormatError{File: g.Path, Name: "split.count", Found: "no file " + filepath.Base(path),
				Expected: fmt.Sprintf("all %d files in one folder", parts)}
		}
		if err == nil && n != parts {
			err = in(path, fault("split.count", fmt.Sprintf("%d, as the first file has it", parts), "%d", n))
		}
		if err != nil {
			return err
		}
	}
	if total, ok := g.Metadata["split.tensors.count"].(int64); ok && parts > 1 && int(total) != len(names) {
		return in(g.Path, fault("split.tensors.count", fmt.Sprintf("%d, the tensors of all files", len(names)), "%d", total))
	}
	return nil
}

// ggufPart is the path of another part of a model, as llama-gguf-split names them.
func ggufPart(path string, i, parts int64) (string, error) {
	of := fmt.Sprintf("-of-%05d", parts)
	dir, name := filepath.Split(path)
	extension := filepath.Ext(name)
	begin, ok := strings.CutSuffix(strings.TrimSuffix(name, extension), "-00001"+of)
	if !ok {
		return "", fault("split.count", "a name that ends with -00001"+of+extension, "%d files, and the name %s", parts, name)
	}
	return filepath.Join(dir, fmt.Sprintf("%s-%05d%s%s", begin, i+1, of, extension)), nil
}

// ReadGGUFBegin reads what a GGUF file has before its data, from a file that has the begin of it. The tensors have no data, and no
// tensor is checked against the file's size.
func ReadGGUFBegin(path string, layout LayoutOf) (*GGUF, error) {
	c := &Checkpoint{dir: path, tensors: map[string]Tensor{}}
	g := &GGUF{Checkpoint: c, Path: path}
	file, err := c.mapBytes(path, ggufHeaderBytes)
	if err == nil {
		err = in(path, g.readBegin(file, layout))
	}
	return g, errors.Join(err, c.unmap())
}

func (g *GGUF) readBegin(file []byte, layout LayoutOf) error {
	h, err := g.header(file, layout)
	if err != nil {
		return err
	}
	for i := range h.tensors {
		t := &h.tensors[i]
		b, _, err := t.size()
		if err != nil {
			return err
		}
		name := g.layout.name(t.name)
		heads, err := g.layout.heads(t)
		if err != nil {
			return err
		}
		g.tensors[name] = Tensor{Name: name, DType: b.dtype(t.kind), Type: b.name, Shape: t.shape, File: g.Path, Heads: heads}
	}
	return nil
}

func (g *GGUF) header(file []byte, layout LayoutOf) (*ggufHeader, error) {
	h, err := parseGGUF(file)
	if err != nil {
		return nil, err
	}
	g.Metadata = h.metadata
	if layout != nil {
		g.layout, err = layout(g.Metadata)
	}
	return h, err
}

// read maps part i of a model, and returns how many there are.
func (g *GGUF) read(path string, i int64, layout LayoutOf, names map[string]bool) (parts int64, err error) {
	file, err := g.mapBytes(path, ggufHeaderBytes)
	if err != nil {
		return 0, err
	}
	parts, err = g.part(path, file, i, layout, names)
	return parts, in(path, err)
}

// part reads part i of a model. Names are those of the tensors so far.
func (g *GGUF) part(path string, file []byte, i int64, layout LayoutOf, names map[string]bool) (parts int64, err error) {
	var h *ggufHeader
	if i == 0 {
		h, err = g.header(file, layout)
	} else {
		h, err = parseGGUF(file)
	}
	if err != nil {
		return 0, err
	}
	parts, no := int64(1), int64(0)
	if n, ok := h.metadata["split.count"].(int64); ok && n > 1 {
		parts = n
		no, _ = h.metadata["split.no"].(int64)
	}
	if no != i {
		return 0, fault("split.no", fmt.Sprintf("%d: the first file of a model names the others", i), "%d of %d files", no, parts)
	}
	return parts, g.addTensors(path, h, file, names)
}

func (g *GGUF) addTensors(path string, h *ggufHeader, file []byte, names map[string]bool) error {
	data := file[min(h.data, uint64(len(file))):]
	var places []extent
	for i := range h.tensors {
		t, at, err := g.place(&h.tensors[i], data)
		if err != nil {
			return err
		}
		places = append(places, at)
		if names[t.Name] {
			return fault(at.name, "each name once", "a second tensor for %s", t.Name)
		}
		names[t.Name] = true
		t.File = path
		g.tensors[t.Name] = t
	}
	return checkOverlap(places)
}

// place finds a tensor in the data.
func (g *GGUF) place(t *ggufTensor, data []byte) (Tensor, extent, error) {
	b, size, err := t.size()
	if err != nil {
		return Tensor{}, extent{}, err
	}
	if t.offset > uint64(len(data)) || size > uint64(len(data))-t.offset {
		return Tensor{}, extent{}, fault(t.name, fmt.Sprintf("an end within the %d bytes of data", len(data))+cut,
			"%d bytes at offset %d", size, t.offset)
	}
	at := extent{t.name, int64(t.offset), int64(t.offset + size)}
	if b.dtype(t.kind).Blocks() && len(t.shape) < 2 {
		return Tensor{}, extent{}, fault(t.name, "a matrix", "a vector of type %s", b.name)
	}
	heads, err := g.layout.heads(t)
	return Tensor{Name: g.layout.name(t.name), DType: b.dtype(t.kind), Type: b.name, Shape: t.shape, Data: data[at.begin:at.end:at.end],
		Heads: heads}, at, err
}

// heads is the number of heads whose rows a tensor has interleaved, or 0: the rotary embedding of llama.cpp's "llama" turns neighbors
// (2i, 2i+1), so that its converter (LlamaModel.permute) interleaves the halves of each head.
func (l Layout) heads(t *ggufTensor) (int64, error) {
	if l.Interleaved == nil {
		return 0, nil
	}
	n := l.Interleaved(t.name)
	if n > 0 && t.shape[0]%(2*n) != 0 {
		return 0, fault(t.name, fmt.Sprintf("a multiple of 2 x %d heads", n), "%d rows", t.shape[0])
	}
	return n, nil
}

// checkOverlap refuses tensors that share bytes. Gaps are padding.
func checkOverlap(places []extent) error {
	slices.SortFunc(places, func(a, b extent) int { return cmp.Compare(a.begin, b.begin) })
	for i := 1; i < len(places); i++ {
		if before := places[i-1]; places[i].begin < before.end {
			return fault(places[i].name, fmt.Sprintf("%d or more, the end of %s", before.end, before.name),
				"an overlap: it begins at byte %d of the data", places[i].begin)
		}
	}
	return nil
}
