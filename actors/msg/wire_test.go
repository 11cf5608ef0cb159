package msg_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/actors/msg/msgpb"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sample/samplepb"
	"github.com/millrace/millrace/tracing"
)

// traveling is one of each message that has a wire form.
func traveling() []any {
	return []any{
		&msg.Tokenize{}, &msg.Tokenized{}, &msg.Detokenize{}, &msg.Detokenized{}, &msg.OpenText{}, &msg.CloseText{},
		&msg.Generate{}, &msg.Find{}, &msg.Found{}, &msg.Redirect{}, &msg.Cancel{}, &msg.Tokens{}, &msg.Text{}, &msg.Started{}, &msg.Lost{},
		&msg.Progress{},
		&msg.ListBlocks{}, &msg.Blocks{}, &msg.Prefetch{}, &msg.Prefetched{}, &msg.Fetch{}, &msg.Slab{},
	}
}

var now = time.Unix(1_800_000_000, 0)

// filler gives every field of a message a value of its own, so that one which the
// wire form forgets is found, today's or one that is added later.
type filler struct{ n int }

func (f *filler) fill(v reflect.Value, depth int) {
	f.n++
	switch v.Interface().(type) {
	case tracing.Parent:
		v.Set(reflect.ValueOf(tracing.Decode(fmt.Sprintf("00-%032x-%016x-01", f.n, f.n), "vendor=state")))
		return
	case *actor.PID:
		v.Set(reflect.ValueOf(actor.NewPID(fmt.Sprint("node", f.n), fmt.Sprint("id", f.n))))
		return
	case time.Time:
		v.Set(reflect.ValueOf(now.Add(time.Duration(f.n) * time.Millisecond)))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), depth)
	case reflect.Struct:
		for _, field := range v.Fields() {
			f.fill(field, depth)
		}
	case reflect.Slice:
		n := 2
		if v.Type() == reflect.TypeFor[[]api.TokenLogprob]() {
			if depth > 1 {
				return // Top of Top
			}
			depth++
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			f.fill(v.Index(i), depth)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		f.fill(key, depth)
		f.fill(value, depth)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(fmt.Sprint("text ", f.n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(f.n))
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(f.n))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(f.n) + 0.5)
	case reflect.Interface:
		if v.Type() == reflect.TypeFor[error]() {
			v.Set(reflect.ValueOf(&api.Error{Code: api.Code(f.n), Param: "p", Message: "m", Reason: "r", RetryAfter: time.Duration(f.n)}))
			return
		}
		v.Set(reflect.ValueOf(json.RawMessage(fmt.Sprintf(`{"z":%d.50,"a":null}`, f.n))))
	default:
		panic("no value for a " + v.Kind().String())
	}
}

// valid mends what a Generate's fields owe each other.
func valid(m any) any {
	if c, ok := m.(*msg.Tokenize); ok {
		c.Grammar.Kind = grammar.Regex
	}
	if t, ok := m.(*msg.Text); ok {
		t.Extra.Dropped, t.Extra.Answers = 0, nil // the gateway counts and gathers them, which no message says
	}
	if g, ok := m.(*msg.Generate); ok {
		g.Grammar.Kind = grammar.Regex
		g.Choices[0], g.Generated, g.MaxTokens = g.Seq, nil, 5
		g.Sampling.TopP, g.Sampling.MinP, g.Sampling.TypicalP, g.Sampling.Temperature = 0.5, 0.25, 0.75, 1.5
		g.Sampling.PresencePenalty, g.Sampling.FrequencyPenalty, g.Sampling.TopLogprobs = 1.5, -1.5, 7
		g.Sampling.XTC, g.Sampling.TopNSigma = sample.XTC{Probability: 0.25, Threshold: 0.125}, 2.5
		g.Beams.Width, g.Beams.LengthPenalty, g.Beams.Early = 3, 0.5, 2
		*g.Scored, g.Pool.Pooling, g.Pool.Answers = 7, api.PoolNone, nil // the gateway makes tokens of answers
	}
	return m
}

func TestEveryFieldOfEveryMessageTravels(t *testing.T) {
	for _, m := range traveling() {
		t.Run(fmt.Sprintf("%T", m), func(t *testing.T) {
			new(filler).fill(reflect.ValueOf(m).Elem(), 0)
			got, err := roundTrip(t, valid(m))
			require.NoError(t, err)
			if c, ok := m.(*msg.Tokenize); ok { // tool calls are decoded like any JSON
				for i := range c.Input.Messages {
					c.Input.Messages[i].ToolCalls = []any{map[string]any{"z": 1.5, "a": nil}, map[string]any{"z": 1.5, "a": nil}}
				}
				got.(*msg.Tokenize).Input.Messages = nil
				c.Input.Messages = nil
			}
			require.Equal(t, m, got)
		})
	}
	g := &msg.Generate{Seq: 1, Choices: []msg.SeqID{1}, Prompt: []int32{1}, Generated: []int32{4, 5}, MaxTokens: 3, Arrival: now,
		Reply: actor.NewPID("a", "b"), Watch: actor.NewPID("a", "b"), Detok: actor.NewPID("a", "b")}
	got, err := roundTrip(t, g)
	require.NoError(t, err)
	require.Equal(t, g, got, "without what may be left out")
	only := &msg.Tokenize{Reply: actor.NewPID("a", "b"), Grammar: &grammar.Spec{Kind: grammar.JSONObject, Param: "p"}}
	got, err = roundTrip(t, only)
	require.NoError(t, err)
	require.Equal(t, only, got, "only a grammar")
	only.Grammar.Kind = "xml"
	_, err = roundTrip(t, only)
	require.ErrorIs(t, err, msg.ErrWire)
}

func roundTrip(t *testing.T, m any) (any, error) {
	t.Helper()
	e, err := msg.Marshal("to", m, now)
	require.NoError(t, err)
	data, err := proto.Marshal(e)
	require.NoError(t, err)
	back := new(msgpb.Envelope)
	require.NoError(t, proto.Unmarshal(data, back))
	require.Equal(t, "to", back.GetTo())
	return msg.Unmarshal(back, now)
}

func TestTheMessagesOfAChatKeepTheirFields(t *testing.T) {
	in := &api.TokenizeRequest{Messages: []api.Message{{
		Role: "assistant", Content: "c", Name: "n", ToolCallID: "i",
		// templates print the keys in this order
		ToolCalls: []any{json.RawMessage(`{"id":"x","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}}`)},
	}}}
	got, err := roundTrip(t, &msg.Tokenize{Reply: actor.NewPID("a", "b"), Input: in})
	require.NoError(t, err)
	require.Equal(t, in, got.(*msg.Tokenize).Input)
}

func TestOneClockMayBeBehindAnother(t *testing.T) {
	g := &msg.Generate{Seq: 1, Choices: []msg.SeqID{1}, Prompt: []int32{1}, MaxTokens: 3, Arrival: now.Add(-time.Second),
		Deadline: now.Add(time.Minute),
		Reply:    actor.NewPID("a", "b"), Watch: actor.NewPID("a", "b"), Detok: actor.NewPID("a", "b")}
	e, err := msg.Marshal("to", g, now)
	require.NoError(t, err)
	there := now.Add(-time.Hour)
	m, err := msg.Unmarshal(e, there)
	require.NoError(t, err)
	require.Equal(t, there.Add(-time.Second), m.(*msg.Generate).Arrival)
	require.Equal(t, there.Add(time.Minute), m.(*msg.Generate).Deadline)
}

func TestWhatDoesNotTravelIsNamed(t *testing.T) {
	_, err := msg.Marshal("to", &msg.KVRound{}, now)
	require.ErrorIs(t, err, msg.ErrLocal)
	require.ErrorContains(t, err, "*msg.KVRound")
}

func TestABadMessageIsAnErrorThatSaysWhat(t *testing.T) {
	pid := &msgpb.PID{Address: "a", Id: "b"}
	generate := func(change func(*msgpb.Generate)) *msgpb.Envelope {
		g := &msgpb.Generate{Seq: 5, Choices: []uint64{5}, Reply: pid, Watch: pid, Detok: pid, Prompt: []int32{1}, MaxTokens: 1}
		change(g)
		return &msgpb.Envelope{Body: &msgpb.Envelope_Generate{Generate: g}}
	}
	_, err := msg.Unmarshal(generate(func(*msgpb.Generate) {}), now)
	require.NoError(t, err)
	for want, e := range map[string]*msgpb.Envelope{
		"no body":                       {},
		"without an actor to answer to": generate(func(g *msgpb.Generate) { g.Detok = nil }),
		"sequence as the first choice":  generate(func(g *msgpb.Generate) { g.Choices = nil }),
		"2 choices without beams":       generate(func(g *msgpb.Generate) { g.Choices = []uint64{5, 6} }),
		"no prompt":                     generate(func(g *msgpb.Generate) { g.Prompt = nil }),
		"at most 1 tokens, of which 2":  generate(func(g *msgpb.Generate) { g.Generated = []int32{1, 2} }),
		"top_p: found 5":                generate(func(g *msgpb.Generate) { g.Sampling = &samplepb.Params{TopP: 5} }),
		"num_beams: found 0":            generate(func(g *msgpb.Generate) { g.Beams = &samplepb.Beams{} }),
		"2 choices of 1 beams": generate(func(g *msgpb.Generate) {
			g.Choices, g.Beams = []uint64{5, 6},
				&samplepb.Beams{Width: 1}
		}),
		"progress of 1 sequences with 0": {Body: &msgpb.Envelope_Progress{Progress: &msgpb.Progress{Seqs: []uint64{1}}}},
		"tokenize: invalid character": {Body: &msgpb.Envelope_Tokenize{Tokenize: &msgpb.Tokenize{Messages: []byte("x"),
			Reply: pid}}},
		"*msg.OpenText without an actor":      {Body: &msgpb.Envelope_OpenText{OpenText: &msgpb.OpenText{Reply: pid}}},
		"*msg.Detokenize without an actor to": {Body: &msgpb.Envelope_Detokenize{}},
	} {
		_, err := msg.Unmarshal(e, now)
		require.ErrorIs(t, err, msg.ErrWire, want)
		require.ErrorContains(t, err, want)
	}
}

// FuzzUnmarshal: no bytes make the receiver panic, and what it accepts it can send.
func FuzzUnmarshal(f *testing.F) {
	for _, m := range traveling() {
		new(filler).fill(reflect.ValueOf(m).Elem(), 0)
		e, err := msg.Marshal("to", valid(m), now)
		if err != nil {
			f.Fatal(err)
		}
		data, err := proto.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e := new(msgpb.Envelope)
		if proto.Unmarshal(data, e) != nil {
			return
		}
		m, err := msg.Unmarshal(e, now)
		if err != nil {
			return
		}
		if _, err := msg.Marshal("to", m, now); err != nil {
			t.Fatal(err)
		}
	})
}
