package bridge

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPartsMakeTheFrameAgain(t *testing.T) {
	at := time.Unix(1000, 0)
	var a assembly
	x, y := bytes.Repeat([]byte("x1"), 1000), bytes.Repeat([]byte("y"), 700)
	px, py := split(1, x, 300), split(1, y, 300)
	require.Len(t, px, 7)
	for i, p := range px {
		if i < len(py) {
			got, err := a.add(at, "b", py[i])
			require.NoError(t, err)
			if i == len(py)-1 {
				require.Equal(t, y, got)
			}
		}
		got, err := a.add(at, "a", p)
		require.NoError(t, err)
		if i < len(px)-1 {
			require.Nil(t, got)
		} else {
			require.Equal(t, x, got)
		}
	}
	require.Zero(t, a.bytes)
	require.Empty(t, a.frames)
}

func TestBadPartsAreErrorsAndHoldNothing(t *testing.T) {
	at := time.Unix(1000, 0)
	var a assembly
	add := func(index, count uint32) error {
		_, err := a.add(at, "a", &part{id: 1, index: index, count: count, data: make([]byte, 10)})
		return err
	}
	require.ErrorIs(t, add(0, 0), errParts)
	require.ErrorIs(t, add(0, mostParts+1), errParts)
	require.ErrorContains(t, add(1, 3), "without those before it")
	require.NoError(t, add(0, 3))
	require.ErrorContains(t, add(2, 3), "part 2 of 3, expected 1 of 3")
	require.Zero(t, a.bytes)
	require.NoError(t, add(0, 3))
	require.ErrorContains(t, add(1, 4), "expected 1 of 3")
	require.NoError(t, add(0, 3))
	at = at.Add(partsLive + time.Second)
	require.ErrorContains(t, add(1, 3), "without those before it", "too late")
	require.Zero(t, a.bytes)
	a.bytes = mostBytes
	require.ErrorContains(t, add(0, 3), "no more fit")
}
