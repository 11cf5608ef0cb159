package log

import (
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/durable/callpb"
	"github.com/millrace/millrace/tracing"
)

// Record is one entry of a call's log. Exactly one of call, owner, closed and events is set. Records
// are encoded as protobuf, so that a newer version may add fields:
//
//	message Record { fixed64 token = 1; string owner = 3; repeated Event events = 4; bytes log = 5; bool closed = 6; Call decoded = 7; }
//	message Call   { string id = 3; string tenant = 4; string owner = 7; string traceparent = 8; string tracestate = 9;
//	                 string key = 10; bytes form = 11; /* a callpb.Call */ }
//	message Event  { uint64 seq = 1; uint32 choice = 2; bytes text = 3; repeated int32 tokens = 4;
//	                 repeated Logprob logprobs = 5; string finish = 6; Error error = 7; bool done = 8; Usage usage = 9; Pin pin = 10;
//	                 string stop = 11; bool reasons = 12; int64 ended = 13; /* Unix seconds */ }
//	message Logprob { int32 token = 1; bytes text = 2; bytes raw = 3; float logprob = 4; repeated Logprob top = 5; }
//	message Error  { uint32 code = 1; string param = 2; string message = 3; string reason = 4; int64 retry_after = 5; }
//	message Usage  { uint32 prompt = 1; uint32 completion = 2; uint32 cached = 3; }
//	message Pin    { string numerics = 1; string text = 2; string prompt = 3; }
//
// Version 0.1.0 wrote the body of an OpenAI request into a Call, in field 2 of the Record. Such a record is damaged here.
type Record struct {
	Log    ID     // identity of the log
	Token  uint64 // of the writer's ownership
	Call   *CallRecord
	Owner  *string // node that owns the call from here on; "" releases it
	Closed bool    // the log ends here because it exceeded its tenant's quota; the call may continue
	Events []api.Event
}

// CallRecord is the first record of a log: the call to run again.
type CallRecord struct {
	Encoded []byte // see callpb.Encode
	ID      string
	Tenant  string
	Key     string // id of the API key that started the call; "" without keys
	Owner   string
	Trace   tracing.Parent // parent of the spans of each gateway that runs the call
}

var errRecord = errors.New("durable: found a damaged record")

func appendField(b []byte, n protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
}

func appendText(b []byte, n protowire.Number, v string) []byte {
	if v == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), v)
}

func appendInt(b []byte, n protowire.Number, v int64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), uint64(v))
}

// encode returns the record in its wire form.
func (r *Record) encode() []byte {
	b := protowire.AppendFixed64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), r.Token)
	if c := r.Call; c != nil {
		b = c.append(b)
	}
	if r.Owner != nil {
		b = appendField(b, 3, []byte(*r.Owner))
	}
	var v []byte
	for i := range r.Events {
		v = appendEvent(v[:0], &r.Events[i])
		b = appendField(b, 4, v)
	}
	if r.Log != (ID{}) {
		b = appendField(b, 5, r.Log[:])
	}
	if r.Closed {
		b = appendInt(b, 6, 1)
	}
	return b
}

// append appends the field of a Record that has the call.
func (c *CallRecord) append(b []byte) []byte {
	v := appendText(appendText(nil, 3, c.ID), 4, c.Tenant)
	v = appendText(v, 7, c.Owner)
	parent, state := tracing.Encode(c.Trace)
	v = appendText(appendText(appendText(v, 8, parent), 9, state), 10, c.Key)
	return appendField(b, 7, appendField(v, 11, c.Encoded))
}

func appendEvent(b []byte, ev *api.Event) []byte {
	b = appendInt(b, 1, int64(ev.Seq))
	b = appendInt(b, 2, int64(ev.Choice))
	b = appendText(b, 3, ev.Text)
	if len(ev.Tokens) > 0 {
		var v []byte
		for _, t := range ev.Tokens {
			v = protowire.AppendVarint(v, uint64(uint32(t)))
		}
		b = appendField(b, 4, v)
	}
	for i := range ev.Logprobs {
		b = appendField(b, 5, appendLogprob(nil, &ev.Logprobs[i]))
	}
	b = appendText(b, 6, string(ev.Finish))
	if ev.Err != nil {
		e := api.AsError(ev.Err)
		v := appendInt(nil, 1, int64(e.Code))
		v = appendText(appendText(appendText(v, 2, e.Param), 3, e.Message), 4, e.Reason)
		b = appendField(b, 7, appendInt(v, 5, int64(e.RetryAfter)))
	}
	if ev.Done {
		b = appendInt(b, 8, 1)
	}
	if u := ev.Usage; u != nil {
		v := appendInt(nil, 1, int64(u.PromptTokens))
		b = appendField(b, 9, appendInt(appendInt(v, 2, int64(u.CompletionTokens)), 3, int64(u.CachedTokens)))
	}
	if p := ev.Pin; p != nil {
		b = appendField(b, 10, appendText(appendText(appendText(nil, 1, p.Numerics), 2, p.Text), 3, p.Prompt))
	}
	b = appendText(b, 11, ev.Stop)
	if ev.Reasons {
		b = appendInt(b, 12, 1)
	}
	return appendInt(b, 13, ev.Ended)
}

func appendLogprob(b []byte, l *api.TokenLogprob) []byte {
	b = appendInt(b, 1, int64(uint32(l.Token)))
	b = appendText(b, 2, l.Text)
	if len(l.Bytes) > 0 {
		b = appendField(b, 3, l.Bytes)
	}
	b = protowire.AppendFixed32(protowire.AppendTag(b, 4, protowire.Fixed32Type), math.Float32bits(l.Logprob))
	for i := range l.Top {
		b = appendField(b, 5, appendLogprob(nil, &l.Top[i]))
	}
	return b
}

// field is one field of a message.
type field struct {
	number int
	n      uint64 // value of a varint, fixed32 or fixed64
	bytes  []byte // value of bytes; it shares the input's memory
}

// fields calls f for each field of a message. A group is an error.
func fields(b []byte, f func(field) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("%w: %w", errRecord, protowire.ParseError(n))
		}
		b = b[n:]
		v := field{number: int(number)}
		switch kind {
		case protowire.VarintType:
			v.n, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			v.n, n = protowire.ConsumeFixed64(b)
		case protowire.Fixed32Type:
			var bits uint32
			bits, n = protowire.ConsumeFixed32(b)
			v.n = uint64(bits)
		case protowire.BytesType:
			v.bytes, n = protowire.ConsumeBytes(b)
		default:
			return fmt.Errorf("%w: found wire type %d of field %d, expected 0, 1, 2 or 5", errRecord, kind, number)
		}
		if n < 0 {
			return fmt.Errorf("%w: field %d: %w", errRecord, number, protowire.ParseError(n))
		}
		if err := f(v); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// decodeRecord decodes a record. The result shares no memory with b.
func decodeRecord(b []byte) (*Record, error) {
	r := &Record{}
	err := fields(b, func(f field) (err error) {
		switch f.number {
		case 1:
			r.Token = f.n
		case 7:
			r.Call, err = decodeCallRecord(f.bytes)
		case 3:
			owner := string(f.bytes)
			r.Owner = &owner
		case 4:
			var ev api.Event
			ev, err = decodeEvent(f.bytes)
			r.Events = append(r.Events, ev)
		case 5:
			if len(f.bytes) != len(r.Log) {
				return fmt.Errorf("%w: found a log identity of %d bytes, expected %d", errRecord, len(f.bytes), len(r.Log))
			}
			copy(r.Log[:], f.bytes)
		case 6:
			r.Closed = f.n != 0
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if r.Call == nil && r.Owner == nil && !r.Closed && len(r.Events) == 0 {
		return nil, fmt.Errorf("%w: found no known field in %d bytes, expected a call, an owner or events", errRecord, len(b))
	}
	return r, nil
}

func decodeCallRecord(b []byte) (*CallRecord, error) {
	c := &CallRecord{Encoded: []byte{}}
	var parent, state string
	err := fields(b, func(f field) error {
		switch f.number {
		case 3:
			c.ID = string(f.bytes)
		case 4:
			c.Tenant = string(f.bytes)
		case 7:
			c.Owner = string(f.bytes)
		case 8:
			parent = string(f.bytes)
		case 9:
			state = string(f.bytes)
		case 10:
			c.Key = string(f.bytes)
		case 11:
			c.Encoded = append([]byte{}, f.bytes...)
		}
		return nil
	})
	c.Trace = tracing.Decode(parent, state)
	return c, err
}

func decodeEvent(b []byte) (ev api.Event, err error) {
	err = fields(b, func(f field) (err error) {
		switch f.number {
		case 1:
			ev.Seq = f.n
		case 2:
			if f.n > callpb.MaxChoices {
				return fmt.Errorf("%w: found choice %d, expected at most %d", errRecord, f.n, callpb.MaxChoices)
			}
			ev.Choice = int(f.n)
		case 3:
			ev.Text = string(f.bytes)
		case 4:
			ev.Tokens, err = decodeTokens(f.bytes)
		case 5:
			var l api.TokenLogprob
			l, err = decodeLogprob(f.bytes, true)
			ev.Logprobs = append(ev.Logprobs, l)
		case 6:
			ev.Finish = api.Finish(f.bytes)
		case 7:
			ev.Err, err = decodeError(f.bytes)
		case 8:
			ev.Done = f.n != 0
		case 9:
			ev.Usage, err = decodeUsage(f.bytes)
		case 10:
			ev.Pin, err = decodePin(f.bytes)
		case 11:
			ev.Stop = string(f.bytes)
		case 12:
			ev.Reasons = f.n != 0
		case 13:
			ev.Ended = int64(f.n)
		}
		return err
	})
	return ev, err
}

func decodeTokens(b []byte) ([]int32, error) {
	var ids []int32
	for len(b) > 0 {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 || v > math.MaxUint32 {
			return nil, fmt.Errorf("%w: found a damaged token id, expected a varint of at most 32 bits", errRecord)
		}
		ids, b = append(ids, int32(uint32(v))), b[n:]
	}
	return ids, nil
}

// decodeLogprob decodes a token's log probability. Only an outer one has alternatives.
func decodeLogprob(b []byte, outer bool) (l api.TokenLogprob, err error) {
	err = fields(b, func(f field) error {
		switch f.number {
		case 1:
			l.Token = int32(uint32(f.n))
		case 2:
			l.Text = string(f.bytes)
		case 3:
			l.Bytes = append([]byte(nil), f.bytes...)
		case 4:
			l.Logprob = math.Float32frombits(uint32(f.n))
		case 5:
			if !outer {
				return fmt.Errorf("%w: found alternatives of an alternative, expected none", errRecord)
			}
			top, err := decodeLogprob(f.bytes, false)
			if err != nil {
				return err
			}
			l.Top = append(l.Top, top)
		}
		return nil
	})
	return l, err
}

func decodeError(b []byte) (*api.Error, error) {
	e := &api.Error{}
	return e, fields(b, func(f field) error {
		switch f.number {
		case 1:
			e.Code = api.Code(f.n)
		case 2:
			e.Param = string(f.bytes)
		case 3:
			e.Message = string(f.bytes)
		case 4:
			e.Reason = string(f.bytes)
		case 5:
			e.RetryAfter = time.Duration(f.n)
		}
		return nil
	})
}

func decodeUsage(b []byte) (*api.Usage, error) {
	u := &api.Usage{}
	return u, fields(b, func(f field) error {
		switch f.number {
		case 1:
			u.PromptTokens = int(f.n)
		case 2:
			u.CompletionTokens = int(f.n)
		case 3:
			u.CachedTokens = int(f.n)
		}
		return nil
	})
}

func decodePin(b []byte) (*api.Pin, error) {
	p := &api.Pin{}
	return p, fields(b, func(f field) error {
		switch f.number {
		case 1:
			p.Numerics = string(f.bytes)
		case 2:
			p.Text = string(f.bytes)
		case 3:
			p.Prompt = string(f.bytes)
		}
		return nil
	})
}
