package weights

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStackPutsTensorsOneBelowTheOther(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "model.safetensors", encode("{"+entry("a", "F16", "[1,2]", 0, 4)+","+entry("b", "F16", "[3,2]", 4, 16)+","+
		entry("wide", "F16", "[1,3]", 16, 22)+","+entry("float", "F32", "[1,2]", 22, 30)+"}", 30))
	c, err := Open(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()

	require.NoError(t, c.Stack(map[string][]string{
		"ab": {"a", "b", "a"}, "missing": {"a", "c"}, "absent": {"c"}, "shapes": {"a", "wide"}, "types": {"a", "float"},
	}))
	got, ok := c.Tensor("ab")
	require.True(t, ok)
	require.Equal(t, []int64{5, 2}, got.Shape)
	require.Equal(t, F16, got.DType)
	require.Equal(t, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3}, got.Data)
	for _, name := range []string{"missing", "absent", "shapes", "types"} {
		_, ok := c.Describe(name)
		require.False(t, ok, name)
	}
}

func TestAddedTensorsHaveTheValuesOfAFunction(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "model.safetensors", encode("{"+entry("a", "F16", "[1,2]", 0, 4)+"}", 4))
	c, err := Open(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()

	require.NoError(t, c.Add("b", []int64{3, 2}, func(i int64) float32 { return float32(i) / 2 }))
	got, ok := c.Tensor("b")
	require.True(t, ok)
	require.Equal(t, []int64{3, 2}, got.Shape)
	require.Equal(t, F32, got.DType)
	for i := range 6 {
		require.InDelta(t, float64(i)/2, number(got, i), 0)
	}
}

// TestShortenLeavesTheFirstRows of tensors of the file, and of those that were made of them.
func TestShortenLeavesTheFirstRows(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "model.safetensors", encode("{"+entry("a", "F16", "[1,2]", 0, 4)+","+entry("b", "F16", "[3,2]", 4, 16)+","+entry("vector",
		"F16", "[3]", 16, 22)+"}", 22))
	c, err := Open(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()

	require.NoError(t, c.Stack(map[string][]string{"ab": {"a", "b"}}))
	for name, want := range map[string][]byte{"ab": {0, 1, 2, 3, 4, 5, 6, 7}, "b": {4, 5, 6, 7, 8, 9, 10, 11}, "a": {0, 1, 2, 3},
		"vector": {16, 17, 18, 19, 20, 21}} {
		c.Shorten(name, 2)
		got, ok := c.Tensor(name)
		require.True(t, ok)
		require.Equal(t, want, got.Data, name)
		require.Equal(t, int64(len(want)), got.DType.Bytes(got.elements()), name)
	}
	c.Shorten("absent", 2)
}

func TestColumnLengths(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "model.safetensors", encode("{"+entry("a", "F16", "[2]", 0, 4)+"}", 4))
	c, err := Open(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()

	require.NoError(t, c.Add("b", []int64{2, 3}, func(i int64) float32 { return []float32{3, 0, -1, 4, 0, 0}[i] }))
	require.Equal(t, []float32{5, 0, 1}, c.ColumnLengths("b"))
	require.Nil(t, c.ColumnLengths("a"), "no matrix")
	require.Nil(t, c.ColumnLengths("c"))
}

func TestUnstackMakesAStackOfMatrices(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "model.safetensors", encode("{"+entry("a", "F16", "[4,3]", 0, 24)+","+entry("b", "F16", "[3,1]", 24, 30)+"}", 30))
	c, err := Open(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()

	c.Unstack([]string{"a", "b", "c"}, 2)
	got, _ := c.Describe("a")
	require.Equal(t, []int64{2, 2, 3}, got.Shape)
	got, _ = c.Describe("b")
	require.Equal(t, []int64{3, 1}, got.Shape, "2 do not divide its rows")
}
