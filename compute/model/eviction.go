package model

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/kvmgr"
)

// MaxSinks is the most sinks of an Eviction: they are in one slab.
const MaxSinks = 16

// MaxContext is the longest sequence of an Eviction, in tokens. The angle of a rotation is a float32: at this position it is off by up to
// 1/32.
const MaxContext = 1 << 20

// EvictedTokens is the number of tokens from one eviction of H2O to the next: MR_H2O_TOKENS of the kernels.
const EvictedTokens = 64

// ErrEviction is an eviction that a model cannot have.
var ErrEviction = errors.New("model: eviction of keys and values")

// Eviction is which keys and values a sequence gives up. The zero value evicts nothing.
//
// StreamingLLM (arXiv:2309.17453): a token sees the first tokens of its sequence, the sinks, and those of a window that ends with
// itself, at positions as if there were no others. So a sequence may be longer than the model's positions.
//
// H2O (arXiv:2306.14048): after each EvictedTokens tokens, every KV head of every layer keeps its last tokens, and those before them that
// got the most attention so far.
type Eviction struct {
	Sinks   int // 1 to MaxSinks; 0: it is not StreamingLLM
	Window  int // tokens, at least 2; 0: what the model's positions leave
	Context int // longest sequence, in tokens; 0: MaxContext

	H2O    bool
	Heavy  int // tokens that got the most attention; 0: an eighth of the model's positions
	Recent int // last tokens; 0: likewise
}

// Evicts are the attributes of attention that an Eviction sets.
type Evicts struct {
	Sinks         int // beside the window
	SinkQ         int // a slot; without Sinks not used
	Heavy, Recent int // of H2O
}

// seen is how many keys the row at a position sees without a window, its own among them.
func (e Evicts) seen(position int) int {
	if e.Heavy > 0 {
		return min(position/EvictedTokens*EvictedTokens, e.Heavy+e.Recent) + position%EvictedTokens + 1
	}
	return position + 1
}

// Kept names the tokens that are kept, "" for all.
func (e Evicts) Kept() string {
	switch {
	case e.Heavy > 0:
		return fmt.Sprintf("heavy %d, recent %d", e.Heavy, e.Recent)
	case e.Sinks > 0:
		return fmt.Sprintf("sinks %d", e.Sinks)
	}
	return ""
}

const (
	noEviction = "none"
	streaming  = "streaming"
	h2o        = "h2o"
)

// EvictionForms are the values that ParseEviction takes, for messages.
const EvictionForms = "none, streaming[:sinks=N,window=N,context=N], or h2o[:heavy=N,recent=N]"

// EvictionNames are the names that ParseEviction takes.
func EvictionNames() []string { return []string{noEviction, streaming, h2o} }

// number is a setting of an Eviction.
type number struct {
	value       *int
	least, most int
}

// ParseEviction reads an Eviction: see EvictionForms. "" is none, and streaming has four sinks.
func ParseEviction(text string) (Eviction, error) {
	name, settings, more := strings.Cut(text, ":")
	var e Eviction
	var fields map[string]number
	switch {
	case !more && (name == "" || name == noEviction):
		return e, nil
	case name == streaming:
		e.Sinks = 4
		fields = map[string]number{"sinks": {&e.Sinks, 1, MaxSinks}, "window": {&e.Window, 2, MaxContext},
			"context": {&e.Context, 1, MaxContext}}
	case name == h2o:
		e.H2O = true
		fields = map[string]number{"heavy": {&e.Heavy, 1, MaxContext}, "recent": {&e.Recent, 1, MaxContext}}
	default:
		return e, fmt.Errorf("found %q, expected %s", text, EvictionForms)
	}
	if !more {
		return e, nil
	}
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

// Group is what a sequence keeps of layers without a window. A region has some slabs before those of its tokens.
func (e Eviction) Group(head, slabTokens int) kvmgr.Group {
	if e.H2O {
		return kvmgr.Bounded{Slabs: (e.Heavy + e.Recent + EvictedTokens + slabTokens - 1) / slabTokens}
	}
	return kvmgr.Full{Head: head}
}

// None says that nothing is evicted.
func (e Eviction) None() bool { return e.Sinks == 0 && !e.H2O }

// String is a value for ParseEviction.
func (e Eviction) String() string {
	name := noEviction
	var settings []string
	add := func(key string, value int) {
		if value > 0 {
			settings = append(settings, fmt.Sprintf("%s=%d", key, value))
		}
	}
	switch {
	case e.H2O:
		name = h2o
		add("heavy", e.Heavy)
		add("recent", e.Recent)
	case e.Sinks > 0:
		name = streaming
		add("sinks", e.Sinks)
		add("window", e.Window)
		add("context", e.Context)
	}
	if len(settings) == 0 {
		return name
	}
	return name + ":" + strings.Join(settings, ",")
}

// Label names what an eviction does to the answers, for clients; "" where nothing is evicted. How long a sequence may be is not part of it.
func (e Eviction) Label() string {
	switch {
	case e.H2O:
		return fmt.Sprintf("%s-%d-%d", h2o, e.Heavy, e.Recent)
	case e.Sinks > 0:
		return fmt.Sprintf("%s-%d-%d", streaming, e.Sinks, e.Window)
	}
	return ""
}

// SetEviction makes the program evict keys and values, and fills in what e leaves open. Error: ErrEviction for a model with windows of its
// own. StreamingLLM: also without rotary embeddings, with fewer positions than the sinks and the window have tokens, or with KVKivi. H2O:
// also with slopes (ALiBi), with no more positions than it keeps, or with a KV type of codes.
func (p *Program) SetEviction(e Eviction) error {
	switch {
	case e.H2O:
		return p.setH2O(e)
	case e.Sinks > 0:
		return p.setStreaming(e)
	}
	return nil
}

func (p *Program) setH2O(e Eviction) error {
	e.Heavy, e.Recent = cmp.Or(e.Heavy, max(p.MaxPositions/8, 1)), cmp.Or(e.Recent, max(p.MaxPositions/8, 1))
	switch {
	case p.KV != KVAuto && p.KV != KVBF16:
		return fmt.Errorf("%w: found KV type %s with h2o, expected %s", ErrEviction, p.KV, KVBF16)
	case e.Heavy+e.Recent >= p.MaxPositions:
		return fmt.Errorf("%w: found %d heavy and %d recent tokens, expected fewer than the model's %d positions", ErrEviction,
			e.Heavy, e.Recent, p.MaxPositions)
	}
	ops := slices.Clone(p.Ops)
	for i := range ops {
		op := &ops[i]
		if op.Kind != OpRopeStore && op.Kind != OpAttention {
			continue
		}
		if err := withShape(op); err != nil {
			return err
		}
		switch {
		case op.Window > 0:
			return withWindow(op)
		case op.ALiBiSlopes != nil:
			return fmt.Errorf("%w: found slopes (ALiBi) in %s, expected a model without them", ErrEviction, p.Architecture)
		}
		op.Heavy, op.Recent = e.Heavy, e.Recent
	}
	p.Ops, p.Eviction = ops, e
	return nil
}

// withShape refuses ops whose keys and values are not those of their layer alone, of one size.
func withShape(op *Op) error {
	var found string
	switch {
	case op.Latent:
		found = "latents"
	case op.Stored:
		found = fmt.Sprintf("keys of layer %d in layer %d", op.KVLayer, op.Layer)
	case op.valueDim() != op.HeadDim:
		found = fmt.Sprintf("keys of %d and values of %d elements", op.HeadDim, op.valueDim())
	default:
		return nil
	}
	return fmt.Errorf("%w: found %s, expected a model whose layers all have keys and values of one size", ErrEviction, found)
}

func withWindow(op *Op) error {
	return fmt.Errorf("%w: found a window of %d tokens in the model, expected a model without windows", ErrEviction, op.Window)
}

func (p *Program) setStreaming(e Eviction) error {
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
		if err := withShape(op); err != nil {
			return err
		}
		switch {
		case op.Kind == OpRopeStore && op.RotaryDim == 0:
			return fmt.Errorf("%w: found attention without rotary embeddings in %s, expected a model with them", ErrEviction,
				p.Architecture)
		case op.Window > 0:
			return withWindow(op)
		case width > 0 && width != op.Heads*op.HeadDim:
			return fmt.Errorf("%w: found queries of %d and %d elements, expected layers of one shape", ErrEviction, width,
				op.Heads*op.HeadDim)
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

// Lossy names the option that makes the keys and values of long sequences lossy, as answers announce it: kivi, or the eviction's Label; ""
// without one.
func (p *Program) Lossy() string {
	if p.KV == KVKivi {
		return KVKivi.String()
	}
	return p.Eviction.Label()
}

// KVUses returns what may be done with keys and values of a type of which an eviction gives some up, before a program and its slabs are
// known.
func KVUses(t KVType, e Eviction) kvmgr.Uses {
	head := 0
	if t == KVKivi {
		head = 1
	}
	g := e.Group(head, 1)
	if e.Sinks > 0 {
		g = kvmgr.Window{Sinks: 1}
	}
	return kvmgr.NewSpec(1, g).Uses
}
