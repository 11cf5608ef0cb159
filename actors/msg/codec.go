package msg

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/actors/msg/msgpb"
)

// Codec is the wire form of messages between processes: an envelope of package msgpb.
type Codec struct{}

// Kind returns the last part of the subject that a message travels on, see [Kind].
func (Codec) Kind(m any) string { return Kind(m) }

// Encode returns the wire form of a message to the named actor, see [Marshal].
func (Codec) Encode(to string, m any, now time.Time) ([]byte, error) {
	e, err := Marshal(to, m, now)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(e)
}

// Decode returns the message of a wire form and the name of its actor, see [Unmarshal].
func (Codec) Decode(data []byte, now time.Time) (to string, m any, err error) {
	e := new(msgpb.Envelope)
	if err := proto.Unmarshal(data, e); err != nil {
		return "", nil, fmt.Errorf("%w: %d bytes: %w", ErrWire, len(data), err)
	}
	m, err = Unmarshal(e, now)
	return e.GetTo(), m, err
}

// Recycle takes back a message after Encode, see [Recycle].
func (Codec) Recycle(m any) { Recycle(m) }
