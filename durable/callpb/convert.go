package callpb

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/compute/grammar/grammarpb"
	"github.com/millrace/millrace/compute/sample/samplepb"
)

// ErrDamaged means that bytes are not an encoded call.
var ErrDamaged = errors.New("callpb: found a damaged call")

// MaxChoices is the largest number of choices of a call. The limit bounds the memory for a damaged one.
const MaxChoices = 1 << 16

// Encode encodes a call that has not run, so that another process can run it: running it may change its requests.
func Encode(c *call.Call) ([]byte, error) {
	w := &Call{
		Kind: uint32(c.Kind), Model: c.Model, Stream: c.Stream, IncludeUsage: c.IncludeUsage, TokenIds: c.TokenIDs,
		Echo: c.Echo, N: uint32(c.N), CreatedNs: c.Created.UnixNano(),
	}
	w.RepeatedFields, w.Proof = c.Repeated, c.Proof
	if p := c.Parsing; p.Format != "" {
		w.Parsing = &Parsing{Format: p.Format, Calls: p.Calls, Allowed: p.Allowed, Single: p.Single, Held: p.Held}
	}
	for _, r := range c.Requests {
		one, err := encodeRequest(r, c.Created)
		if err != nil {
			return nil, fmt.Errorf("callpb: call %s: %w", c.ID, err)
		}
		w.Requests = append(w.Requests, one)
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(w)
}

func encodeRequest(r *api.Request, created time.Time) (*Request, error) {
	w := &Request{
		Id: r.ID, ContinueFinal: r.ContinueFinal, NoGenerationPrompt: r.NoGenerationPrompt,
		Prompt: []byte(r.Prompt), PromptTokens: r.PromptTokens, TopLogprobs: int32(r.TopLogprobs), MaxTokens: uint32(r.MaxTokens),
		StopTokens: r.StopTokens, IgnoreEos: r.IgnoreEOS, IncludeStop: r.IncludeStop, KeepSpecial: r.KeepSpecial,
		Sampling: samplepb.FromParams(&r.Sampling), Beams: samplepb.FromBeams(r.Beams),
		Priority: int32(r.Priority), CacheSalt: r.CacheSalt, Grammar: grammarpb.FromSpec(r.Grammar),
		KeepTokens: r.KeepTokens, ReasoningEnd: r.ReasoningEnd,
		ClipMaxTokens: r.ClipMaxTokens, Truncate: r.Truncate,
	}
	for _, text := range r.Stop {
		w.Stop = append(w.Stop, []byte(text))
	}
	if !r.Deadline.IsZero() {
		w.TimeoutNs = int64(r.Deadline.Sub(created))
	}
	if !r.Clock.IsZero() {
		w.ClockNs = r.Clock.UnixNano()
	}
	if p := r.Equal; p != nil {
		w.Equal = &Equal{Numerics: p.Numerics, Text: p.Text}
	}
	var err error
	w.Messages, w.Tools, w.TemplateArgs, err = api.EncodeChat(r.Messages, r.Tools, r.TemplateArgs)
	return w, err
}

// Decode decodes a call and gives it its ID. An error is ErrDamaged.
func Decode(id string, encoded []byte) (*call.Call, error) {
	w := new(Call)
	if err := proto.Unmarshal(encoded, w); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	c := &call.Call{
		ID: id, Kind: call.Kind(w.GetKind()), Model: w.GetModel(), Stream: w.GetStream(), IncludeUsage: w.GetIncludeUsage(),
		TokenIDs: w.GetTokenIds(), Echo: w.GetEcho(), N: int(w.GetN()), Created: time.Unix(0, w.GetCreatedNs()),
	}
	c.Repeated, c.Proof = w.GetRepeatedFields(), w.GetProof()
	if p := w.GetParsing(); p != nil {
		c.Parsing = call.Parsing{Format: p.GetFormat(), Calls: p.GetCalls(), Allowed: p.GetAllowed(), Single: p.GetSingle(),
			Held: p.GetHeld()}
	}
	for _, one := range w.GetRequests() {
		r, err := decodeRequest(one, c)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		c.Requests = append(c.Requests, r)
	}
	if c.N < 1 || len(c.Requests) == 0 || c.Choices() > MaxChoices {
		return nil, fmt.Errorf("%w: found a call of %d requests with %d choices each, expected 1 to %d choices in all", ErrDamaged,
			len(c.Requests), c.N, MaxChoices)
	}
	return c, nil
}

func decodeRequest(w *Request, c *call.Call) (*api.Request, error) {
	r := &api.Request{
		ID: w.GetId(), Model: c.Model, N: c.N, Arrival: c.Created, ContinueFinal: w.GetContinueFinal(),
		NoGenerationPrompt: w.GetNoGenerationPrompt(),
		Prompt:             string(w.GetPrompt()), PromptTokens: w.GetPromptTokens(), TopLogprobs: int(w.GetTopLogprobs()),
		MaxTokens: int(w.GetMaxTokens()), StopTokens: w.GetStopTokens(), IgnoreEOS: w.GetIgnoreEos(), IncludeStop: w.GetIncludeStop(),
		KeepSpecial: w.GetKeepSpecial(), Sampling: w.GetSampling().ToParams(), Beams: w.GetBeams().ToBeams(),
		Priority: int(w.GetPriority()), CacheSalt: w.GetCacheSalt(), Grammar: w.GetGrammar().ToSpec(),
		KeepTokens: w.GetKeepTokens(), ReasoningEnd: w.GetReasoningEnd(),
		ClipMaxTokens: w.GetClipMaxTokens(), Truncate: w.GetTruncate(),
	}
	for _, text := range w.GetStop() {
		r.Stop = append(r.Stop, string(text))
	}
	if w.GetTimeoutNs() != 0 {
		r.Deadline = c.Created.Add(time.Duration(w.GetTimeoutNs()))
	}
	if w.GetClockNs() != 0 {
		r.Clock = time.Unix(0, w.GetClockNs())
	}
	if p := w.GetEqual(); p != nil {
		r.Equal = &api.Pin{Numerics: p.GetNumerics(), Text: p.GetText()}
	}
	var err error
	r.Messages, r.Tools, r.TemplateArgs, err = api.DecodeChat(w.GetMessages(), w.GetTools(), w.GetTemplateArgs())
	return r, err
}

// Fingerprint returns a hash of an encoded call without its creation time: two calls have the same one if they are one call that was sent
// twice.
func Fingerprint(encoded []byte) (string, error) {
	var w Call
	if err := proto.Unmarshal(encoded, &w); err != nil {
		return "", fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	w.CreatedNs = 0
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(&w)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), err
}

// Same reports whether two encoded calls are one call that was sent twice. Their creation times
// may differ.
func Same(a, b []byte) bool {
	var x, y Call
	if proto.Unmarshal(a, &x) != nil || proto.Unmarshal(b, &y) != nil {
		return false
	}
	x.CreatedNs, y.CreatedNs = 0, 0
	return proto.Equal(&x, &y)
}
