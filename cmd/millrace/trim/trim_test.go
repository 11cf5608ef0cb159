package trim

import (
	"context"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

const mib = 1 << 20

func TestAQuietProcessReturnsTheMemoryOfABurst(t *testing.T) {
	x := trimmer{last: memory{resident: 40 * mib}}
	require.False(t, x.due(memory{resident: 44 * mib, allocated: 50 * mib}), "little has come")
	require.False(t, x.due(memory{resident: 900 * mib, allocated: 2000 * mib}), "busy")
	require.True(t, x.due(memory{resident: 900 * mib, allocated: 2001 * mib}), "quiet")
	x.trimmed(memory{resident: 44 * mib, allocated: 2002 * mib})
	require.False(t, x.due(memory{resident: 44 * mib, allocated: 2003 * mib}), "nothing is left")
	require.False(t, x.due(memory{resident: 30 * mib, allocated: 2004 * mib}), "it has shrunk")
	require.True(t, x.due(memory{resident: 40 * mib, allocated: 2005 * mib}), "and grown again")
}

// trims counts the trims in a number of checks, each of which leaves as much as before.
func trims(x *trimmer, checks int, m memory) (n int) {
	for range checks {
		if x.due(m) {
			n++
			x.trimmed(m)
		}
	}
	return n
}

func TestMemoryThatWasInUseIsReturnedLater(t *testing.T) {
	x, m := trimmer{last: memory{resident: 40 * mib}}, memory{resident: 300 * mib}
	require.Equal(t, 4, trims(&x, 9, m), "after 0, 1, 3 and 7 checks")
	require.Equal(t, patience-4, trims(&x, 1000, m), "what stays after many trims is in use")
	m.resident += 5 * mib
	require.Equal(t, 1, trims(&x, 1, m), "growth beside it is not")
}

func TestATimeOfWorkBeginsTheCountOfTrimsAgain(t *testing.T) {
	x, m := trimmer{last: memory{resident: 40 * mib}}, memory{resident: 300 * mib}
	for range 10 * patience {
		require.Equal(t, 4, trims(&x, 9, m))
		m.allocated += 100 * mib
		require.False(t, x.due(m), "busy")
	}
}

func TestTrimmingEndsWithItsContext(t *testing.T) {
	m, err := read()
	require.NoError(t, err)
	require.Positive(t, m.resident)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	Run(ctx, zerolog.Nop())
}
