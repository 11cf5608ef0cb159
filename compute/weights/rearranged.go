package weights

import (
	"maps"
	"slices"
)

// Shorten leaves the first rows of a matrix. One that is not there, of fewer rows, or of no floats, stays: its use is the error.
func (c *Checkpoint) Shorten(name string, rows int64) {
	shorten := func(t *Tensor) {
		if len(t.Shape) == 2 && t.Shape[0] >= rows && t.DType.Floats() {
			t.Shape = []int64{rows, t.Shape[1]}
			t.Data = t.Data[:t.DType.Bytes(t.elements())]
		}
	}
	if d, ok := c.derived[name]; ok {
		shorten(&d.Tensor)
	} else if t, ok := c.tensors[name]; ok {
		shorten(&t)
		c.tensors[name] = t
	}
}

// Flatten gives tensors of floats one dimension, which has all their elements. A name that is not there is left out.
func (c *Checkpoint) Flatten(names []string) {
	for _, name := range names {
		if t, ok := c.tensors[name]; ok && t.DType.Floats() {
			t.Shape = []int64{t.elements()}
			c.tensors[name] = t
		}
	}
}

// Squeeze takes the dimensions of one element from tensors of floats. A name that is not there is left out.
func (c *Checkpoint) Squeeze(names []string) {
	for _, name := range names {
		if t, ok := c.tensors[name]; ok && t.DType.Floats() {
			t.Shape = slices.DeleteFunc(slices.Clone(t.Shape), func(n int64) bool { return n == 1 })
			c.tensors[name] = t
		}
	}
}

// Unstack makes stacks of n matrices of those that have these one below the other. A name that is not there, or of a matrix of no floats
// or of another number of rows, is left out: its use is the error.
func (c *Checkpoint) Unstack(names []string, n int64) {
	for _, name := range names {
		if t, ok := c.tensors[name]; ok && len(t.Shape) == 2 && t.Shape[0]%n == 0 && t.DType.Floats() {
			t.Shape = []int64{n, t.Shape[0] / n, t.Shape[1]}
			c.tensors[name] = t
		}
	}
}

// Gather replaces matrices of floats by those of some of their rows. A name that is not there, or of a tensor of another shape, of fewer
// rows or of no floats, is left out: its use is the error.
func (c *Checkpoint) Gather(names []string, rows []int64) error {
	var all []*derived
	for _, name := range names {
		t, ok := c.tensors[name]
		if !ok || len(t.Shape) != 2 || !t.DType.Floats() || len(rows) == 0 || slices.Max(rows) >= t.Shape[0] {
			continue
		}
		from, bytes := t.Data, t.DType.Bytes(t.Shape[1])
		t.Shape = []int64{int64(len(rows)), t.Shape[1]}
		all = append(all, &derived{Tensor: t, fill: func(dst []byte, first, last int64) {
			for i, row := range rows[first:last] {
				copy(dst[int64(i)*bytes:], from[row*bytes:(row+1)*bytes])
			}
		}})
	}
	return c.derive(all)
}

// Transpose replaces matrices, or stacks of matrices, by those with rows in place of columns. A name that is not there, or of a tensor
// of another shape or of no floats, is left out: its use is the error.
func (c *Checkpoint) Transpose(names []string) error {
	var all []*derived
	for _, name := range names {
		t, ok := c.tensors[name]
		rank := len(t.Shape)
		if !ok || rank != 2 && rank != 3 || t.DType == Other {
			continue
		}
		from, size := t.Data, t.DType.Bytes(1)
		t.Shape = slices.Clone(t.Shape)
		rows, columns := t.Shape[rank-1], t.Shape[rank-2] // of the result
		t.Shape[rank-2], t.Shape[rank-1] = rows, columns
		all = append(all, &derived{Tensor: t, fill: func(dst []byte, first, last int64) {
			if rank == 2 { // first and last are rows
				transpose(dst, from, first, last, columns, rows, size)
				return
			}
			bytes := rows * columns * size
			for i := first; i < last; i++ {
				transpose(dst[(i-first)*bytes:], from[i*bytes:(i+1)*bytes], 0, rows, columns, rows, size)
			}
		}})
	}
	return c.derive(all)
}

// TransposeParts adds tensors of n matrices: of each of the n equal parts of a matrix, one below the other, the first rows, transposed.
// names are those of the matrices, to those of what is added. A matrix of another shape or of no floats is left out: the use of what it
// lacks is the error.
func (c *Checkpoint) TransposeParts(names map[string]string, n, rows int64) error {
	var all []*derived
	for _, from := range slices.Sorted(maps.Keys(names)) {
		t, source, ok := c.floatRows(from)
		if !ok || len(t.Shape) != 2 || t.Shape[0]%n != 0 || t.Shape[0]/n < rows {
			continue
		}
		width, size, part := t.Shape[1], t.DType.Bytes(1), t.Shape[0]/n
		t.Name, t.Shape = names[from], []int64{n, width, rows}
		all = append(all, &derived{Tensor: t, fill: func(dst []byte, first, last int64) {
			for i := first; i < last; i++ {
				transpose(dst[(i-first)*width*rows*size:], source(i*part, (i+1)*part), 0, width, rows, width, size)
			}
		}})
	}
	return c.derive(all)
}

// RepeatRows adds matrices with each row of another one n times. names are those of the matrices, to those of what is added. One of another
// shape or of no floats is left out: the use of what it lacks is the error.
func (c *Checkpoint) RepeatRows(names map[string]string, n int64) error {
	var all []*derived
	for _, from := range slices.Sorted(maps.Keys(names)) {
		t, source, ok := c.floatRows(from)
		if !ok || len(t.Shape) != 2 {
			continue
		}
		bytes := t.DType.Bytes(t.Shape[1])
		t.Name, t.Shape = names[from], []int64{n * t.Shape[0], t.Shape[1]}
		all = append(all, &derived{Tensor: t, fill: func(dst []byte, first, last int64) {
			for row := first; row < last; row++ {
				copy(dst[(row-first)*bytes:][:bytes], source(row/n, row/n+1))
			}
		}})
	}
	return c.derive(all)
}

// Stack adds tensors that are others one below the other: names are those of the parts of each. Parts of which one is missing, of no
// floats, or of another type or row than the first are left out: the use of what they lack is the error.
func (c *Checkpoint) Stack(names map[string][]string) error {
	var all []*derived
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if d, ok := c.stacked(name, names[name]); ok {
			all = append(all, d)
		}
	}
	return c.derive(all)
}

func (c *Checkpoint) stacked(name string, parts []string) (*derived, bool) {
	first, ok := c.Describe(parts[0])
	if !ok || len(first.Shape) == 0 || first.DType == Other {
		return nil, false
	}
	rows := int64(0)
	for _, part := range parts {
		t, ok := c.Describe(part)
		if !ok || t.DType != first.DType || len(t.Shape) == 0 || !slices.Equal(t.Shape[1:], first.Shape[1:]) {
			return nil, false
		}
		rows += t.Shape[0]
	}
	first.Name, first.Shape = name, append([]int64{rows}, first.Shape[1:]...)
	return &derived{Tensor: first, fill: func(dst []byte, begin, end int64) {
		at := int64(0)
		for _, part := range parts {
			t, _ := c.Reserved(part)
			row := int64(len(t.Data)) / max(1, t.Shape[0])
			from, to := max(begin, at), min(end, at+t.Shape[0])
			if from < to {
				c.Use([]string{part})
				dst = dst[copy(dst, t.Data[(from-at)*row:(to-at)*row]):]
				_ = c.Forget([]string{part}) // else its memory stays
			}
			at += t.Shape[0]
		}
	}}, true
}

// transpose writes the columns [first, last) of a row-major [n][stride] matrix as rows.
func transpose(dst, from []byte, first, last, n, stride, size int64) {
	for row := first; row < last; row++ {
		for i := range n {
			at := (i*stride + row) * size
			copy(dst[:size], from[at:at+size])
			dst = dst[size:]
		}
	}
}
