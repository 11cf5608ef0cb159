package idle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheFirstUseAfterARestWakes(t *testing.T) {
	const quiet = time.Second
	s, now := New(), time.Unix(1e9, 0)
	require.False(t, s.Use(now), "it did not rest yet")
	require.False(t, s.Rest(now.Add(quiet-1), quiet), "the next use may be near")
	require.Empty(t, s.Woken())

	now = now.Add(quiet)
	require.True(t, s.Rest(now, quiet))
	require.True(t, s.Rest(now, quiet), "it lasts")
	require.True(t, s.Use(now))
	require.Len(t, s.Woken(), 1)
	require.False(t, s.Use(now), "the rest is over")
	require.Len(t, s.Woken(), 1)

	require.False(t, s.Rest(now, quiet))
	now = now.Add(quiet)
	require.True(t, s.Rest(now, quiet))
	require.True(t, s.Use(now), "nobody waits for a value that nobody read")
	<-s.Woken()
	require.Empty(t, s.Woken())
}

func TestWhatWasNeverUsedRests(t *testing.T) {
	require.True(t, New().Rest(time.Now(), time.Hour))
}
