package gateway

import "github.com/millrace/millrace/api"

// stream reads the events of a request. Closing it cancels a request that has not ended.
type stream struct {
	*api.BufferReader
	events *api.Buffer
	cancel func()
}

func newStream(events *api.Buffer, cancel func()) *stream {
	return &stream{BufferReader: events.Reader(), events: events, cancel: cancel}
}

// Close implements api.Stream. The events of a closed stream can still be read: a cancelled request
// is charged for its tokens.
func (s *stream) Close() {
	if !s.events.Ended() {
		s.cancel()
	}
}
