package msg

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheCodecKeepsMessageAndReceiver(t *testing.T) {
	now := time.Unix(1000, 0)
	data, err := Codec{}.Encode("req-1", &Cancel{Seq: 7, Owner: "n1"}, now)
	require.NoError(t, err)
	to, m, err := Codec{}.Decode(data, now)
	require.NoError(t, err)
	require.Equal(t, "req-1", to)
	require.Equal(t, &Cancel{Seq: 7, Owner: "n1"}, m)

	_, err = Codec{}.Encode("req-1", &CancelRequest{}, now)
	require.ErrorIs(t, err, ErrLocal)
	for n := range data {
		_, _, err = Codec{}.Decode(data[:n], now)
		require.ErrorIs(t, err, ErrWire, "the first %d bytes", n)
	}
}
