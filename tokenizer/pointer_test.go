package tokenizer

import (
	"reflect"
	"testing"

	hf "github.com/daulet/tokenizers"
	"github.com/stretchr/testify/require"
)

// TestTheLibrarysPointerIsItsTokenizer: library.pointer reads the one field of the library's type, which is not exported.
func TestTheLibrarysPointerIsItsTokenizer(t *testing.T) {
	of := reflect.TypeFor[hf.Tokenizer]()
	require.Equal(t, 1, of.NumField())
	require.Equal(t, reflect.UnsafePointer, of.Field(0).Type.Kind())
	require.Zero(t, of.Field(0).Offset)
}
