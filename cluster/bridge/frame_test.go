package bridge

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// The bytes are those of version 0.0: processes of two versions exchange frames.
func TestAFrameHasTheFormOfTheVersionBefore(t *testing.T) {
	for form, f := range map[string]*frame{
		"\n\x02n1\x12\x12\n\x05req-1J\t\t\a\x00\x00\x00\x00\x00\x00\x00\x12\x13\n\x06req-22:\t\t\t\x00\x00\x00\x00\x00\x00\x00": {from: "n1",
			messages: [][]byte{
				[]byte("\n\x05req-1J\t\t\a\x00\x00\x00\x00\x00\x00\x00"), []byte("\n\x06req-22:\t\t\t\x00\x00\x00\x00\x00\x00\x00"),
			}},
		"\n\x02n1\x1a\v\b\xac\x02\x10\x01\x18\x03\"\x02xy": {from: "n1", part: &part{id: 300, index: 1, count: 3, data: []byte("xy")}},
		"\n\x02n1\x1a\t\b\xac\x02\x18\x03\"\x02xy":         {from: "n1", part: &part{id: 300, count: 3, data: []byte("xy")}},
	} {
		require.Equal(t, form, string(f.encode()))
		got, err := decodeFrame([]byte(form))
		require.NoError(t, err)
		require.Equal(t, f, got)
	}
}

func TestUnknownFieldsOfAFrameAreSkipped(t *testing.T) {
	form := append((&frame{from: "n1"}).encode(), "\x79\x01\x02\x03\x04\x05\x06\x07\x08\x20\x05"...) // 15: fixed64, 4: varint
	got, err := decodeFrame(form)
	require.NoError(t, err)
	require.Equal(t, &frame{from: "n1"}, got)
}

func TestDamagedFramesAreErrors(t *testing.T) {
	whole := (&frame{from: "n1", part: &part{id: 300, index: 1, count: 3, data: bytes.Repeat([]byte("x"), 200)}}).encode()
	for n := range whole {
		if n == 0 || n == 4 { // nothing, and the field before the part
			continue
		}
		_, err := decodeFrame(whole[:n])
		require.ErrorIs(t, err, errFrame, "the first %d bytes", n)
	}
	_, err := decodeFrame([]byte("\x1a\x06\x10\xff\xff\xff\xff\x1f")) // a part's index of 33 bits
	require.ErrorIs(t, err, errFrame)
}
