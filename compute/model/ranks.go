package model

import (
	"errors"
	"fmt"
	"slices"
)

// ErrRanks is the error for a program that cannot be split among a number of ranks.
var ErrRanks = errors.New("tensor parallelism")

// Split returns the programs of n ranks, which together compute what p does: tensor parallelism as in Megatron-LM (arXiv:1909.08053). A
// linear op that feeds attention or another linear op is split by columns: each rank has some of its outputs. One that reads such a share
// is split by rows, and an OpAllReduce after it adds the ranks' sums. So a layer has two of these. Attention is split by heads. If there
// are more ranks than KV heads, several ranks keep the same one. Experts are split by columns and rows like an MLP, so that all ranks have
// equal work. The head is split by the vocabulary. Everything else is computed by each rank. Biases of ops that are split by rows are rank
// 0's.
//
// The programs' logits are shares of an output's, in the order of ranks: Classes is the number of a rank's. Errors are ErrRanks.
func (p *Program) Split(n int) ([]*Program, error) {
	if n == 1 {
		return []*Program{p}, nil
	}
	if what := p.unsplit(); what != "" {
		return nil, fmt.Errorf("%w of %d ranks: found %s, expected none", ErrRanks, n, what)
	}
	programs := make([]*Program, n)
	for r := range programs {
		s := splitter{p: p, ranks: n, rank: r, held: map[int]share{}, now: map[int]int{}, slots: map[slotKey]int{}}
		if err := s.run(); err != nil {
			return nil, fmt.Errorf("%w of %d ranks: %w", ErrRanks, n, err)
		}
		programs[r] = &s.out
	}
	return programs, nil
}

// unsplit names what of the program Split has no rule for; "": nothing.
func (p *Program) unsplit() string {
	switch {
	case !p.Generates():
		return "an encoder or a classifier"
	case p.StateBytes() > 0:
		return "layers with a state"
	case p.EarlyLayers > 0:
		return "draft tokens of the first layers"
	}
	for i := range p.Ops {
		op := &p.Ops[i]
		switch {
		case op.Kind == OpAltUp:
			return "alternating updates"
		case op.Latent:
			return "latents"
		case op.Kind == OpRopeStore && op.Heads == 0:
			return "keys and values without queries"
		case op.Routed == RoutedHeads:
			return "a matrix of each head"
		case op.Sinks > 0:
			return "sinks"
		}
	}
	return ""
}

// slotKey names a slot of out that p does not have: by a slot of p, or by a negative number for sums, and by its width.
type slotKey struct{ number, width int }

// splitter makes the program of a rank.
type splitter struct {
	p           *Program
	ranks, rank int
	out         Program
	held        map[int]share   // the rank's share of each slot of p; with RoutedEach that of each of the top k parts
	now         map[int]int     // where each slot of p is: a slot of out
	slots       map[slotKey]int // slots of out for shares of a slot of p
	reduces     int
}

func (s *splitter) run() error {
	s.out = *s.p
	s.out.Ops, s.out.Ranks = nil, s.ranks
	s.out.Slots = slices.Clone(s.p.Slots)
	s.out.Tensors = slices.Clone(s.p.Tensors)
	for i := range s.p.Slots {
		s.now[i] = i
	}
	for i := range s.p.Ops {
		op := s.p.Ops[i]
		if err := s.split(i, &op); err != nil {
			return fmt.Errorf("op %s of layer %d: %w", op.Name, op.Layer, err)
		}
	}
	s.out.compact()
	return nil
}

// split appends the rank's ops for op i.
func (s *splitter) split(i int, op *Op) error {
	in := s.held[op.In]
	switch op.Kind {
	case OpLinear:
		if in != nil {
			return s.byRows(op, in)
		}
		return s.byColumns(i, op)
	case OpRopeStore, OpAttention:
		return s.heads(op)
	case OpNorm:
		if in != nil {
			return s.partNorm(op, in)
		}
	case OpSelectRows:
		s.append(op, in, s.p.Slots[op.In].Width)
		return nil
	case OpGate:
		return s.gate(op)
	default:
		if in != nil && op.Kind != OpEmbed {
			return fmt.Errorf("found an op of kind %s that reads a share of a row, expected a linear op or attention", op.Kind)
		}
	}
	s.append(op, nil, 0)
	return nil
}

// append appends an op whose slots are still those of p. held is what it leaves in Out, of rows that are parts times as wide as its width
// and whole wide in p.
func (s *splitter) append(op *Op, held share, whole int) {
	op.In = s.slot(op.In)
	if op.Routed != RoutedNone {
		op.Route = s.slot(op.Route)
	}
	if op.Gate != nil {
		g := *op.Gate
		g.Gates = s.slot(g.Gates)
		op.Gate = &g
	}
	to := op.Out
	s.held[to], s.now[to] = held, to
	if held != nil {
		s.now[to] = s.shared(to, held.width()*(s.p.Slots[to].Width/whole))
	}
	op.Out = s.now[to]
	s.out.Ops = append(s.out.Ops, *op)
}

func (s *splitter) slot(i int) int {
	if i == None {
		return None
	}
	return s.now[i]
}

// shared is the slot for a share of slot of.
func (s *splitter) shared(of, width int) int {
	slot := s.p.Slots[of]
	slot.Width = width
	return s.own(of, slot)
}

// own is a slot of out that p does not have, one for each number and width.
func (s *splitter) own(number int, slot Slot) int {
	key := slotKey{number, slot.Width}
	i, ok := s.slots[key]
	if !ok {
		i = len(s.out.Slots)
		s.out.Slots = append(s.out.Slots, slot)
		s.slots[key] = i
	}
	return i
}

// byColumns appends a linear op that reads whole rows.
func (s *splitter) byColumns(i int, op *Op) (err error) {
	width := s.p.Slots[op.Out].Width
	var want share
	if i == len(s.p.Ops)-1 {
		if want, err = s.vocabulary(op); err != nil {
			return err
		}
		s.out.Classes = want.width()
	} else if want, err = s.wanted(i); err != nil {
		return err
	}
	if want == nil {
		s.append(op, nil, 0)
		return nil
	}
	if op.Accumulate {
		return errors.New("found a share of a row that is added to, expected one that is written")
	}
	if op.Routed == RoutedEach {
		width /= op.Routing.TopK
	}
	switch {
	case op.Routed != RoutedNone || op.Gated:
		each := make([]Part, len(op.Parts))
		for k, part := range op.Parts {
			if len(want) != 1 {
				return fmt.Errorf("found %d runs of rows of a gated op, expected one", len(want))
			}
			if each[k], err = part.rows(want[0]); err != nil {
				return err
			}
		}
		op.Parts = each
	default:
		if op.Parts, err = rowsOf(op.Parts, want); err != nil {
			return err
		}
	}
	s.append(op, want, width)
	return nil
}

// vocabulary is the rank's share of the logits.
func (s *splitter) vocabulary(op *Op) (share, error) {
	all := s.p.Vocab
	if op.Kind != OpLinear || op.Gated || op.Routed != RoutedNone || op.Accumulate || all < s.ranks {
		return nil, fmt.Errorf("found %d logits of an op of kind %s, expected a plain linear op with one for each rank", all, op.Kind)
	}
	return share{{all * s.rank / s.ranks, all * (s.rank + 1) / s.ranks}}, nil
}

// wanted is the share of what op i writes that its readers take; nil: all of it.
func (s *splitter) wanted(i int) (share, error) {
	op := &s.p.Ops[i]
	var want share
	for _, reader := range s.p.readers(i) {
		var takes share
		var err error
		switch reader.Kind {
		case OpRopeStore, OpAttention:
			takes, err = s.headSpans(reader)
		case OpLinear:
			if reader.In == op.Out {
				takes, err = s.middle(op, reader)
			}
		case OpGate:
			if other := reader.In; other != op.Out {
				takes = s.held[other]
			} else {
				takes = s.held[reader.Gate.Gates]
			}
		case OpNorm:
			if reader.In == reader.Out && reader.NormWidth > 0 {
				continue // of some elements, in place
			}
		default:
		}
		if err != nil || takes == nil || want != nil && !slices.Equal(want, takes) {
			return nil, err
		}
		want = takes
	}
	return want, nil
}

// readers are the ops that read what op i writes.
func (p *Program) readers(i int) (readers []*Op) {
	slot := p.Ops[i].Out
	for k := i + 1; k < len(p.Ops); k++ {
		op := &p.Ops[k]
		reads := op.In == slot || op.Out == slot && op.Accumulate || op.Routed != RoutedNone && op.Route == slot ||
			op.Gate != nil && op.Gate.Gates == slot
		switch {
		case reads && op.Kind == OpSelectRows:
			if op.Out != slot {
				readers = append(readers, p.readers(k)...)
			}
		case reads:
			readers = append(readers, op)
		}
		if op.Out == slot && op.In != slot && !op.Accumulate {
			break
		}
	}
	return readers
}

// middle is the rank's share of what an MLP or an expert has between its two ops: whole groups of the second one's weights.
func (s *splitter) middle(first, second *Op) (share, error) {
	if second.Gated || second.Activation != ActNone || first.Accumulate || (second.Routed == RoutedSum) != (first.Routed == RoutedEach) &&
		(second.Routing.TopK != 1 || first.Routed != RoutedNone) {
		return nil, nil
	}
	width := second.PartWidth(s.p.Slots[second.In].Width)
	least := max(1, second.Weights.Group)
	for _, part := range second.Parts {
		least = max(least, s.p.Tensors[part.Weight].BlockSize)
	}
	group := 0
	for g := 64; g > 0 && group == 0; g /= 2 { // equal shares, of whole vectors where that is possible
		if g := max(g, least); width%(g*s.ranks) == 0 {
			group = g
		}
	}
	if group == 0 {
		group = least
	}
	groups := (width + group - 1) / group // the last one may be shorter, but for blocks
	if groups < s.ranks {
		return nil, fmt.Errorf("found %d columns in groups of %d that feed %s, expected a group for each rank", width, group, second.Name)
	}
	return share{{groups * s.rank / s.ranks * group, min(width, groups*(s.rank+1)/s.ranks*group)}}, nil
}

// byRows appends a linear op that reads a share of its rows, and the sum over the ranks.
func (s *splitter) byRows(op *Op, in share) (err error) {
	slot := s.p.Slots[op.Out]
	switch {
	case op.Gated || op.Activation != ActNone:
		return errors.New("found an activation of a sum over ranks, expected none")
	case slot.Type != SlotF32:
		return fmt.Errorf("found a sum over ranks in slot %s of operands, expected float32", slot.Name)
	case op.Routed == RoutedEach:
		return errors.New("found experts that read a share of a row, expected whole rows")
	case len(in) != 1:
		return fmt.Errorf("found %d runs of a row, expected one", len(in))
	}
	op.Parts = slices.Clone(op.Parts)
	for i := range op.Parts {
		part := &op.Parts[i]
		if s.rank > 0 {
			part.Bias = None
		}
		if part.Weight, err = s.columns(part.Weight, in[0]); err != nil {
			return err
		}
	}
	whole, adds := op.Out, op.Accumulate
	turn := s.reduces % 2 // no op before the next sum may write the slot
	s.reduces++
	slot.Name = fmt.Sprintf("partial.%d", turn)
	partial := s.own(-1-turn, slot)
	op.In, op.Accumulate = s.slot(op.In), false
	if op.Routed != RoutedNone {
		op.Route = s.slot(op.Route)
	}
	op.Out = partial
	s.out.Ops = append(s.out.Ops, *op)
	s.held[whole], s.now[whole] = nil, whole
	s.out.Ops = append(s.out.Ops, Op{
		Kind: OpAllReduce, Name: op.Name + ".all_reduce", Layer: op.Layer, In: partial, Out: whole, Accumulate: adds,
		Weight: None, Bias: None, Types: None, QNorm: None, KNorm: None, NullScores: None,
	})
	return nil
}

// ofRank are the rank's heads and KV heads.
func (s *splitter) ofRank(op *Op) (heads, kv span, err error) {
	n, r := s.ranks, s.rank
	if op.Heads%n != 0 || op.KVHeads%n != 0 && n%op.KVHeads != 0 {
		return heads, kv,
			fmt.Errorf("found %d heads and %d KV heads, expected a multiple of the ranks, and of KV heads a multiple or a divisor",
				op.Heads, op.KVHeads)
	}
	heads = span{op.Heads / n * r, op.Heads / n * (r + 1)}
	if op.KVHeads%n == 0 {
		return heads, span{op.KVHeads / n * r, op.KVHeads / n * (r + 1)}, nil
	}
	head := op.KVHeads * r / n
	return heads, span{head, head + 1}, nil
}

// headSpans is the rank's share of the queries, keys and values that an op of attention reads.
func (s *splitter) headSpans(op *Op) (share, error) {
	heads, kv, err := s.ofRank(op)
	if err != nil {
		return nil, err
	}
	d, v := op.HeadDim, op.valueDim()
	spans := share{{heads.from * d, heads.to * d}}
	if !op.Stored {
		k := op.Heads * d
		values := k + op.KVHeads*d
		spans = append(spans, span{k + kv.from*d, k + kv.to*d}, span{values + kv.from*v, values + kv.to*v})
	}
	return spans, nil
}

// heads appends an op of attention, with the rank's heads.
func (s *splitter) heads(op *Op) error {
	in := s.held[op.In]
	want, err := s.headSpans(op)
	if err != nil {
		return err
	}
	if !slices.Equal(in, want) {
		return errors.New("found queries, keys and values that are not of the rank's heads, expected those of a linear op")
	}
	heads, kv, _ := s.ofRank(op)
	whole := op.Heads * op.valueDim()
	op.Heads, op.KVHeads = heads.width(), kv.width()
	if op.ALiBiSlopes != nil {
		op.ALiBiSlopes = op.ALiBiSlopes[heads.from:heads.to]
	}
	if op.Kind == OpRopeStore {
		s.append(op, in, s.p.Slots[op.In].Width)
		return nil
	}
	if op.NullScores != None {
		if op.NullScores, err = s.columns(op.NullScores, heads); err != nil {
			return err
		}
	}
	s.append(op, share{{heads.from * op.valueDim(), heads.to * op.valueDim()}}, whole)
	return nil
}

// partNorm appends a norm of whole groups of a share's elements, in place: of heads.
func (s *splitter) partNorm(op *Op, in share) (err error) {
	group, end := op.NormWidth, op.NormOffset+op.NormWidth
	switch {
	case op.Norm == NormNone:
		group = 1 // a product of each element
	case op.NormGroups > 0:
		group /= op.NormGroups
	}
	var normed share
	at, offset := 0, 0
	for _, v := range in {
		a, b := max(v.from, op.NormOffset), min(v.to, end)
		if a < b {
			if normed == nil {
				offset = at + a - v.from
			}
			normed = append(normed, span{a - op.NormOffset, b - op.NormOffset})
		}
		at += v.width()
	}
	for _, v := range normed {
		if v.from%group != 0 || v.to%group != 0 {
			return fmt.Errorf("found a norm of %d elements, expected whole ones among a rank's", group)
		}
	}
	for _, vector := range []*int{&op.Weight, &op.Bias} {
		if *vector == None || s.p.Tensors[*vector].Shape[0] == int64(group) && op.Norm != NormNone {
			continue
		}
		if len(normed) != 1 {
			return fmt.Errorf("found a norm with weights of %d runs of a row, expected one", len(normed))
		}
		if *vector, err = s.columns(*vector, normed[0]); err != nil {
			return err
		}
	}
	op.NormOffset, op.NormWidth = offset, normed.width()
	if op.Norm != NormNone {
		op.NormGroups = op.NormWidth / group
	}
	s.append(op, in, s.p.Slots[op.In].Width)
	return nil
}

// gate appends a product of two rows, of which a rank has equal shares.
func (s *splitter) gate(op *Op) error {
	in, gates := s.held[op.In], s.held[op.Gate.Gates]
	if !slices.Equal(in, gates) || in != nil && (op.Gate.Group > 0 || op.Gate.Sparse || op.Gate.Offset > 0) {
		return errors.New("found a gate of shares of rows that differ or are normed, expected a plain one of equal shares")
	}
	s.append(op, in, s.p.Slots[op.In].Width)
	return nil
}
