package api

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryReaderOfABufferGetsAllEvents(t *testing.T) {
	b := NewBuffer()
	b.Append(Event{Text: "a"}, Event{Text: "b"})
	early, late := b.Reader(), b.Reader()
	got := make(chan []Event)
	for _, r := range []*BufferReader{early, late} {
		go func() {
			var all []Event
			for {
				e, err := r.Next(context.Background())
				if err != nil {
					got <- all
					return
				}
				all = append(all, e)
			}
		}()
	}
	b.Append(Event{Text: "c", Done: true}, Event{Text: "nothing follows the end"})
	want := []Event{{Seq: 1, Text: "a"}, {Seq: 2, Text: "b"}, {Seq: 3, Text: "c", Done: true}}
	require.Equal(t, want, <-got)
	require.Equal(t, want, <-got)
	require.Equal(t, want, b.Events())
	require.True(t, b.Ended())
	early.Close()
	late.Close()
	require.Empty(t, b.readers)
}

func TestABufferThatEndsEarlyEndsWithItsError(t *testing.T) {
	b := NewBuffer()
	b.Append(Event{Text: "a"})
	r, why := b.Reader(), errors.New("moved")
	b.End(why)
	b.End(errors.New("again"))
	_, err := r.Next(t.Context())
	require.NoError(t, err)
	e, err := r.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, Event{Seq: 2, Finish: FinishError, Err: why, Done: true}, e)
	_, err = r.Next(t.Context())
	require.ErrorIs(t, err, io.EOF)
	require.Len(t, b.Events(), 1, "the error is the reader's")
}

func TestEventsOfSeveralBlocksKeepTheirOrder(t *testing.T) {
	const events = 3*blockEvents + 5
	b := NewBuffer()
	r := b.Reader()
	var want, got []Event
	for i := range events {
		b.Append(Event{Choice: i})
		want = append(want, Event{Seq: uint64(i) + 1, Choice: i})
		if i%7 == 0 { // a reader that stops within blocks and at their ends
			for len(got) < len(want) {
				e, err := r.Next(t.Context())
				require.NoError(t, err)
				got = append(got, e)
			}
		}
	}
	for len(got) < events {
		e, err := r.Next(t.Context())
		require.NoError(t, err)
		got = append(got, e)
	}
	require.Equal(t, want, got)
	require.Equal(t, want, b.Events())
	require.Equal(t, events, b.Len())
}

func TestARestartDropsEventsThatNobodyHasRead(t *testing.T) {
	b := NewBuffer()
	r := b.Reader()
	b.Append(Event{Text: "a"}, Event{Text: "b"})
	require.True(t, b.Restart(false))
	b.Append(Event{Text: "c"})
	e, err := r.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, Event{Seq: 1, Text: "c"}, e)
	require.False(t, b.Restart(false), "c has been read")
	require.True(t, b.Restart(true))
	require.Equal(t, []Event{{Seq: 1, Text: "c"}, {Seq: 2, Restart: true}}, b.Events())
}
