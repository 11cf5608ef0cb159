package sim

import (
	"fmt"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
)

// region is a sequence's slabs in the simulated pool. Each group of layers has the states of all tokens. Where layers keep a state of the
// last token only, it is in the first slabs too.
type region struct {
	runner   *Runner
	groups   []group
	capacity int // slabs of each group
}

// group is the slabs of one group of layers.
type group struct {
	slabs []int32 // by place; -1: not mapped any more
	first int     // slabs before it are not, but for those of sinks
}

// NewRegion returns an empty region for a sequence of up to the given tokens.
func (r *Runner) NewRegion(tokens int) (compute.Region, error) {
	if tokens < 0 {
		return nil, fmt.Errorf("sim: %w: a region of %d tokens", device.ErrInvalid, tokens)
	}
	return &region{runner: r, groups: make([]group, r.spec.Counts().Count()), capacity: r.spec.Head() + device.Slabs(tokens)}, nil
}

// windowed are the groups that give slabs back.
func (g *region) windowed() []group { return g.groups[g.runner.spec.Counts().Full:] }

// Append maps slabs after those that are mapped already.
func (g *region) Append(slabs []int32) error {
	n := len(g.groups)
	if at := len(g.groups[0].slabs); len(slabs)%n != 0 || at+len(slabs)/n > g.capacity {
		return fmt.Errorf("sim: %w: %d slabs of %d groups after %d places, the region has at most %d", device.ErrInvalid, len(slabs), n, at,
			g.capacity)
	}
	full := g.runner.spec.Counts().Full
	for i, id := range slabs {
		to := &g.groups[i%n]
		none := id == -1 && i%n >= full && to.first == len(to.slabs)
		if !none && (id < 0 || int(id) >= g.runner.slabs) {
			return fmt.Errorf("sim: %w: slab %d, the pool has %d", device.ErrInvalid, id, g.runner.slabs)
		}
		if to.slabs = append(to.slabs, id); none {
			to.first++
		}
	}
	return nil
}

// Mappings is 0: any number of slabs can be shared.
func (r *Runner) Mappings() int { return 0 }

// CopySlab copies the states of the first tokens of a slab to another one.
func (r *Runner) CopySlab(from, to int32, tokens int) error {
	if min(from, to) < 0 || int(max(from, to)) >= r.slabs || tokens < 0 || tokens > device.SlabTokens {
		return fmt.Errorf("sim: %w: copy %d tokens of slab %d to slab %d, the pool has %d", device.ErrInvalid, tokens, from, to, r.slabs)
	}
	copy(r.kv[int(to)*device.SlabTokens:][:tokens], r.kv[int(from)*device.SlabTokens:])
	return nil
}

// Unmap unmaps the last slabs.
func (g *region) Unmap(n int) (unmapped int, err error) {
	for ; unmapped < n; unmapped += len(g.groups) {
		last := len(g.groups[0].slabs) - 1
		if last < g.groups[0].first { // that has the most
			break
		}
		for i := range g.groups {
			to := &g.groups[i]
			to.slabs, to.first = to.slabs[:last], min(to.first, last)
		}
	}
	return unmapped, nil
}

// Advance unmaps the first slabs.
func (g *region) Advance(first int) error {
	sinks := g.runner.options.Program.SinkSlabs(device.SlabTokens)
	for i := range g.windowed() {
		if err := g.windowed()[i].advance(first, sinks, g.capacity, len(g.windowed()) == len(g.groups)); err != nil {
			return err
		}
	}
	return nil
}

// advance unmaps the slabs before a place, but for those of sinks. An empty group begins there, if all groups do.
func (g *group) advance(first, sinks, capacity int, begins bool) error {
	if first > capacity || first > len(g.slabs) && (len(g.slabs) > g.first || !begins) {
		return fmt.Errorf("sim: %w: advance to slab %d, slabs %d to %d of %d are mapped", device.ErrInvalid, first, g.first, len(g.slabs)-1,
			capacity)
	}
	for ; g.first < first; g.first++ {
		if g.first == len(g.slabs) {
			g.slabs = append(g.slabs, -1)
		}
		if g.first >= sinks {
			g.slabs[g.first] = -1
		}
	}
	return nil
}

// Close unmaps the slabs.
func (g *region) Close() { clear(g.groups) }

// at returns the place of the state after the token at a position, in a group.
func (g *region) at(position, of int) (*state, error) {
	slab, from := g.runner.spec.Head()+position/device.SlabTokens, &g.groups[of]
	if position < 0 || slab < from.first || slab >= len(from.slabs) {
		return nil, fmt.Errorf("position %d, slabs %d to %d of group %d are mapped", position, from.first, len(from.slabs)-1, of)
	}
	return &g.runner.kv[int(from.slabs[slab])*device.SlabTokens+position%device.SlabTokens], nil
}

// before returns the state before a position.
func (g *region) before(position int) (state, error) {
	if position == 0 {
		return start, nil
	}
	var last state
	for i := range g.groups {
		s, err := g.at(position-1, i)
		if err != nil {
			return 0, err
		}
		if i > 0 && *s != last {
			return 0, fmt.Errorf("groups of layers have different tokens up to position %d", position-1)
		}
		last = *s
	}
	for i := range g.runner.spec.Head() {
		if *g.head(i) != last.part(i) {
			return 0, fmt.Errorf("slab %d of the state is not of the tokens up to position %d", i, position-1)
		}
	}
	return last, nil
}

// head returns the place of a part of the state that the region keeps of its last token.
func (g *region) head(i int) *state { return &g.runner.kv[int(g.groups[0].slabs[i])*device.SlabTokens] }

// put stores the state after a token at a position and returns it.
func (g *region) put(position int, token int32, before state) (state, error) {
	if token < 0 || int(token) >= g.runner.Vocab() {
		return 0, fmt.Errorf("token %d, expected 0 to %d", token, g.runner.Vocab()-1)
	}
	after := before.next(token)
	for i := range g.groups {
		to, err := g.at(position, i)
		if err != nil {
			return 0, err
		}
		*to = after
	}
	for i := range g.runner.spec.Head() {
		*g.head(i) = after.part(i)
	}
	return after, nil
}

func regionOf(r compute.Region) (*region, error) {
	g, ok := r.(*region)
	if !ok {
		return nil, fmt.Errorf("a region of type %T", r)
	}
	return g, nil
}

// sequence runs the rows of one sequence. Its first output goes to output row output.
func (r *Runner) sequence(s *compute.Rows, output, hidden int) error {
	switch {
	case len(s.Tokens) == 0:
		return fmt.Errorf("no tokens")
	case s.Outputs() > len(s.Tokens) || s.Hidden > len(s.Tokens):
		return fmt.Errorf("%d outputs and %d hidden states of %d tokens", s.Outputs(), s.Hidden, len(s.Tokens))
	}
	g, err := regionOf(s.Region)
	if err != nil {
		return err
	}
	if s.Beams != nil {
		return r.beams(g, s, output)
	}
	last, err := g.before(s.Position)
	if err != nil {
		return err
	}
	first := len(s.Tokens) - s.Outputs() // of those whose logits are wanted
	for i, token := range s.Tokens {
		if last, err = g.put(s.Position+i, token, last); err != nil {
			return err
		}
		if i >= first {
			r.logits.set(output+i-first, last)
		}
		if at := i - (len(s.Tokens) - s.Hidden); at >= 0 {
			last.fillHidden(r.logits.Hidden(hidden + at))
		}
	}
	r.timer.Add(len(s.Tokens), s.Position, s.Outputs())
	return nil
}

// beams runs a row for each beam. The past of a beam is the prompt, followed by the responses that
// its index names.
func (r *Runner) beams(prompt *region, s *compute.Rows, output int) error {
	b := s.Beams
	step := s.Position - b.Prompt
	if step < 0 || len(b.Responses) != len(s.Tokens) || len(b.Index) != len(s.Tokens) {
		return fmt.Errorf("%d beams with %d responses and %d indices at position %d after a prompt of %d",
			len(s.Tokens), len(b.Responses), len(b.Index), s.Position, b.Prompt)
	}
	for i, token := range s.Tokens {
		last, err := r.beamPast(prompt, b, i, step)
		if err != nil {
			return err
		}
		own, err := regionOf(b.Responses[i])
		if err != nil {
			return err
		}
		if last, err = own.put(step, token, last); err != nil {
			return err
		}
		r.logits.set(output+i, last)
	}
	r.timer.AddBeams(len(s.Tokens), s.Position, b.Prompt)
	return nil
}

// beamPast returns the state after the past of a beam, in a step after the prompt.
func (r *Runner) beamPast(prompt *region, b *compute.Beams, beam, step int) (state, error) {
	if step == 0 {
		return prompt.before(b.Prompt)
	}
	if len(b.Index[beam]) < step {
		return 0, fmt.Errorf("beam %d has an index of %d steps, expected %d", beam, len(b.Index[beam]), step)
	}
	holder := int(b.Index[beam][step-1])
	if holder < 0 || holder >= len(b.Responses) {
		return 0, fmt.Errorf("beam %d has its past in response %d of %d", beam, holder, len(b.Responses))
	}
	from, err := regionOf(b.Responses[holder])
	if err != nil {
		return 0, err
	}
	return from.before(step)
}
