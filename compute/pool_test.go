package compute

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAPoolIsBoundedByItsSequencesOnlyWhereTheyAreGiven(t *testing.T) {
	require.Equal(t, math.MaxInt, (&Options{}).mostSlabs(4096), "a server's: what no sequence needs holds prefixes")
	require.Equal(t, 3*256, (&Options{MaxSequences: 3}).mostSlabs(4096))
	require.Equal(t, 3*10, (&Options{MaxSequences: 3, MaxTokens: 160}).mostSlabs(4096))
	require.Equal(t, 3*2, (&Options{MaxSequences: 3, MaxTokens: 160}).mostSlabs(32))
}
