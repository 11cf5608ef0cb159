package bridge

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// frame is the content of one NATS message: messages for one node in the order in which they
// were sent, or a part of a frame that was too large. Its wire form is protobuf's, and a codec's
// messages are opaque to it:
//
//	message Frame { string from = 1; repeated bytes messages = 2; Part part = 3; }
//	message Part  { uint64 id = 1; uint32 index = 2; uint32 count = 3; bytes data = 4; }
//
// Processes of two versions exchange frames while a cluster is updated: a field's number is
// never used again for something else.
type frame struct {
	from     string // node
	messages [][]byte
	part     *part // nil: a whole frame
}

// part is a piece of an encoded frame. The parts of a frame come in order.
type part struct {
	id    uint64 // of the frame, unique for its sender
	index uint32
	count uint32
	data  []byte
}

var errFrame = errors.New("bridge: bad frame")

// fieldOverhead is the most bytes that a field takes beside its content: tag and length.
const fieldOverhead = 8

func (f *frame) encode() []byte {
	size := fieldOverhead + len(f.from)
	for _, m := range f.messages {
		size += fieldOverhead + len(m)
	}
	b := appendBytes(make([]byte, 0, size), 1, []byte(f.from))
	for _, m := range f.messages {
		b = appendBytes(b, 2, m)
	}
	if f.part != nil {
		b = appendBytes(b, 3, f.part.encode())
	}
	return b
}

func (p *part) encode() []byte {
	var b []byte
	for i, v := range []uint64{p.id, uint64(p.index), uint64(p.count)} {
		if v != 0 {
			b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(i+1), protowire.VarintType), v)
		}
	}
	return appendBytes(b, 4, p.data)
}

func appendBytes(b []byte, n protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
}

// decodeFrame reads an encoded frame. The result shares the memory of b.
func decodeFrame(b []byte) (*frame, error) {
	f := &frame{}
	err := fields(b, func(n protowire.Number, _ uint64, data []byte) (err error) {
		switch int(n) {
		case 1:
			f.from = string(data)
		case 2:
			f.messages = append(f.messages, data)
		case 3:
			f.part, err = decodePart(data)
		}
		return err
	})
	return f, err
}

func decodePart(b []byte) (*part, error) {
	p := &part{}
	return p, fields(b, func(n protowire.Number, v uint64, data []byte) error {
		if (n == 2 || n == 3) && v > math.MaxUint32 {
			return fmt.Errorf("%w: part: field %d is %d, expected 32 bits", errFrame, n, v)
		}
		switch int(n) {
		case 1:
			p.id = v
		case 2:
			p.index = uint32(v)
		case 3:
			p.count = uint32(v)
		case 4:
			p.data = data
		}
		return nil
	})
}

// fields calls take for each field of a message: with the value of a number, or the content of bytes.
func fields(b []byte, take func(n protowire.Number, v uint64, data []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("%w: %w", errFrame, protowire.ParseError(n))
		}
		var v uint64
		var data []byte
		field := b[n:]
		switch kind {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(field)
		case protowire.BytesType:
			data, n = protowire.ConsumeBytes(field)
		default: // of a newer version
			n = protowire.ConsumeFieldValue(number, kind, field)
		}
		if n < 0 {
			return fmt.Errorf("%w: field %d: %w", errFrame, number, protowire.ParseError(n))
		}
		if err := take(number, v, data); err != nil {
			return err
		}
		b = field[n:]
	}
	return nil
}
