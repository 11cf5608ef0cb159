package model

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxSinks is the most sinks of an Eviction: they are in one slab.
const MaxSinks = 16

// MaxContext is the longest sequence of an Eviction, in tokens. The angle of a rotation is a float32: at this position it is off by up to 1/32.
const MaxContext = 1 << 20

// ErrEviction is an eviction that a model cannot have.
var ErrEviction = errors.New("model: eviction of keys and values")

// Eviction is StreamingLLM (arXiv:2309.17453): a token sees the first tokens of its sequence, the sinks, and those of a window that ends with
// itself, at positions as if there were no others. So a sequence may be longer than the model's positions. The zero value evicts nothing.
type Eviction struct {
	Sinks   int // 1 to MaxSinks; 0: nothing is evicted
	Window  int // tokens, at least 2; 0: what the model's positions leave
	Context int // longest sequence, in tokens; 0: MaxContext
}

const (
	noEviction = "none"
	streaming  = "streaming"
)

// EvictionForms are the values that ParseEviction takes, for messages.
const EvictionForms = "none, or streaming[:sinks=N,window=N,context=N]"

// ParseEviction reads an Eviction: see EvictionForms. "" is none, and streaming has four sinks.
func ParseEviction(text string) (Eviction, error) {
	name, settings, more := strings.Cut(text, ":")
	switch {
	case !more && (name == "" || name == noEviction):
		return Eviction{}, nil
	case name != streaming:
		return Eviction{}, fmt.Errorf("found %q, expected %s", text, EvictionForms)
	}
	e := Eviction{Sinks: 4}
	if !more {
		return e, nil
	}
	fields := map[string]struct {
		value       *int
		least, most int
	}{"sinks": {&e.Sinks, 1, MaxSinks}, "window": {&e.Window, 2, MaxContext}, "context": {&e.Context, 1, MaxContext}}
	for setting := range strings.SplitSeq(settings, ",") {
		key, value, _ := strings.Cut(setting, "=")
		f, known := fields[key]
		if !known {
			return Eviction{}, fmt.Errorf("found %q in %q, expected %s", setting, text, EvictionForms)
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < f.least || n > f.most {
			return Eviction{}, fmt.Errorf("found %q in %q, expected %s=%d to %d", setting, text, key, f.least, f.most)
		}
		*f.value = n
	}
	return e, nil
}

// String is a value for ParseEviction.
func (e Eviction) String() string {
	if e.Sinks == 0 {
		return noEviction
	}
	text := fmt.Sprintf("%s:sinks=%d", streaming, e.Sinks)
	if e.Window > 0 {
		text += fmt.Sprintf(",window=%d", e.Window)
	}
	if e.Context > 0 {
		text += fmt.Sprintf(",context=%d", e.Context)
	}
	return text
}

// Label names what an eviction does to the answers, for clients; "" where nothing is evicted. How long a sequence may be is not part of it.
func (e Eviction) Label() string {
	if e.Sinks == 0 {
		return ""
	}
	return fmt.Sprintf("%s-%d-%d", streaming, e.Sinks, e.Window)
}

// SetEviction makes the program evict keys and values, and fills in what e leaves open. Error: ErrEviction for a model without rotary
// embeddings, with windows of its own, with fewer positions than the sinks and the window have tokens, or with KVKivi.
func (p *Program) SetEviction(e Eviction) error {
	if e.Sinks == 0 {
		return nil
	}
	e.Window, e.Context = cmp.Or(e.Window, p.MaxPositions-e.Sinks), cmp.Or(e.Context, MaxContext)
	switch {
	case p.KV == KVKivi:
		return fmt.Errorf("%w: found KV type %s, expected another one", ErrEviction, p.KV)
	case e.Window < 2 || e.Sinks+e.Window > p.MaxPositions:
		return fmt.Errorf("%w: found %d sinks and a window of %d, expected at most the model's %d positions, and a window of 2 or more",
			ErrEviction, e.Sinks, e.Window, p.MaxPositions)
	case e.Context < e.Sinks+e.Window:
		return fmt.Errorf("%w: found a context of %d tokens with %d sinks and a window of %d, expected at least their sum",
			ErrEviction, e.Context, e.Sinks, e.Window)
	}
	ops, sinkQ, width := slices.Clone(p.Ops), len(p.Slots), 0
	for i := range ops {
		op := &ops[i]
		if op.Kind == OpEmbed && op.Bias != None {
			return fmt.Errorf("%w: found a table of positions in %s, expected rotary embeddings", ErrEviction, p.Architecture)
		}
		if op.Kind != OpRopeStore && op.Kind != OpAttention {
			continue
		}
		switch {
		case op.Kind == OpRopeStore && op.RotaryDim == 0:
			return fmt.Errorf("%w: found attention without rotary embeddings in %s, expected a model with them", ErrEviction, p.Architecture)
		case op.Window > 0:
			return fmt.Errorf("%w: found a window of %d tokens in the model, expected a model without windows", ErrEviction, op.Window)
		}
		op.Window, op.Sinks, op.SinkQ = e.Window, e.Sinks, sinkQ
		width = op.Heads * op.HeadDim
	}
	p.Ops = ops
	p.Slots = append(slices.Clone(p.Slots), Slot{Name: "sink_q", Type: SlotF32, Width: width})
	p.MaxPositions, p.Eviction = e.Context, e
	return nil
}

// SinkSlabs is the number of leading slabs, of some tokens each, that a sequence keeps beside its window.
func (p *Program) SinkSlabs(slabTokens int) int {
	return (p.Eviction.Sinks + slabTokens - 1) / slabTokens
}

// Lossy names the option that makes the keys and values of long sequences lossy, as answers announce it: kivi, or the eviction's Label; "" without one.
func (p *Program) Lossy() string {
	if p.KV == KVKivi {
		return KVKivi.String()
	}
	return p.Eviction.Label()
}
