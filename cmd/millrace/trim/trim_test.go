package trim

import (
	"context"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func TestAQuietProcessReturnsTheMemoryOfABurst(t *testing.T) {
	const mib = 1 << 20
	x := trimmer{last: memory{resident: 40 * mib}}
	require.False(t, x.due(memory{resident: 44 * mib, allocated: 50 * mib}), "little has come")
	require.False(t, x.due(memory{resident: 900 * mib, allocated: 2000 * mib}), "busy")
	require.True(t, x.due(memory{resident: 900 * mib, allocated: 2001 * mib}), "quiet")
	for range patience {
		require.True(t, x.due(memory{resident: 300 * mib, allocated: 2001 * mib}), "it may have been in use during the trim")
		x.trimmed(memory{resident: 300 * mib, allocated: 2001 * mib})
	}
	require.False(t, x.due(memory{resident: 300 * mib, allocated: 2010 * mib}), "what stays after several trims is in use")
	require.True(t, x.due(memory{resident: 310 * mib, allocated: 2020 * mib}))
	x.trimmed(memory{resident: 301 * mib, allocated: 2020 * mib})
	for range settle - 2 {
		require.False(t, x.due(memory{resident: 305 * mib, allocated: 2020 * mib}))
	}
	require.True(t, x.due(memory{resident: 305 * mib, allocated: 2020 * mib}), "memory in use at the last trim may be free now")
	x.trimmed(memory{resident: 301 * mib, allocated: 2020 * mib})
	for range 2 * settle {
		require.False(t, x.due(memory{resident: 305 * mib, allocated: 2020 * mib}), "once is enough")
	}
	require.False(t, x.due(memory{resident: 200 * mib, allocated: 2021 * mib}), "it has shrunk")
	require.True(t, x.due(memory{resident: 210 * mib, allocated: 2022 * mib}), "and grown again")
}

func TestTrimmingEndsWithItsContext(t *testing.T) {
	m, err := read()
	require.NoError(t, err)
	require.Positive(t, m.resident)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	Run(ctx, zerolog.Nop())
}
