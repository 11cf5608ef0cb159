package model

// Groups divides the layers for the KV cache: a slab has the keys and values of a few tokens for the layers of one group. All groups have
// the same number of layers, so that any slab serves any group. Layers that see all tokens and layers that see a window are in different
// groups: a sequence gives back the slabs of the latter while it runs.
type Groups struct {
	Layers   int // of a group, and of a slab; the last group of either kind may have fewer
	Full     int // groups whose layers see all tokens, the first ones
	Windowed int // groups whose layers see a window
}

// mostGroups bounds the groups: each takes slabs, mappings and a place in the prefix tree of its own.
const mostGroups = 8

// Count is the number of groups.
func (g Groups) Count() int { return g.Full + g.Windowed }

// Groups returns the groups of a program. If all layers are of one kind, or must share slabs, as with states, it is one group. EarlyLayers
// are the first of groups of as many layers. All layers of an encoder have one place: each reads the keys and values of its own step alone.
func (p *Program) Groups() Groups {
	if p.Encoder() {
		return Groups{Layers: 1, Full: 1}
	}
	windows := p.windows()
	if n := p.EarlyLayers; n > 0 {
		return Groups{Layers: n, Full: (len(windows) + n - 1) / n}
	}
	windowed := 0
	for _, w := range windows {
		if w > 0 {
			windowed++
		}
	}
	switch full := len(windows) - windowed; {
	case windowed == 0 || p.StateBytes() > 0 || full > 0 && (p.OneGroup || p.KV == KVKivi):
		return Groups{Layers: max(1, len(windows)), Full: 1} // also if no layer has keys
	case full == 0:
		return Groups{Layers: len(windows), Windowed: 1}
	default:
		return divide(full, windowed)
	}
}

// divide chooses the layers of a group: those that leave the fewest places of slabs without a layer, in groups that keep all tokens first.
// If two sizes leave as many, the larger one has fewer groups.
func divide(full, windowed int) (best Groups) {
	unused := func(g Groups) (inFull, inWindowed int) { return g.Full*g.Layers - full, g.Windowed*g.Layers - windowed }
	for layers := max(full, windowed); layers > 0; layers-- {
		g := Groups{Layers: layers, Full: (full + layers - 1) / layers, Windowed: (windowed + layers - 1) / layers}
		if g.Count() > mostGroups {
			break
		}
		f, w := unused(g)
		if bf, bw := unused(best); best.Layers == 0 || f < bf || f == bf && w < bw {
			best = g
		}
	}
	return best
}

// Place is where a slab of a group has a layer.
type Place struct{ Group, Layer int }

// Places returns the place of each decoder layer that has keys and values of its own.
func (p *Program) Places() map[int]Place {
	g, windows := p.Groups(), p.windows()
	places := make(map[int]Place, len(windows))
	if p.Encoder() {
		for _, op := range p.caches() {
			places[op.Layer] = Place{}
		}
		return places
	}
	full, windowed := 0, g.Full*g.Layers
	for i, op := range p.caches() {
		w := windows[i]
		next := &full
		if w > 0 && g.Windowed > 0 {
			next = &windowed
		}
		places[op.Layer] = Place{*next / g.Layers, *next % g.Layers}
		*next++
	}
	return places
}

// CacheLayer is the decoder layer whose keys and values an op of attention has.
func (op *Op) CacheLayer() int {
	if op.Stored {
		return op.KVLayer
	}
	return op.Layer
}

// caches are the attention ops of the layers that have keys and values of their own. A program of sizes alone, without ops, has those of
// all layers.
func (p *Program) caches() (ops []*Op) {
	for i := range p.Ops {
		if op := &p.Ops[i]; op.Kind == OpAttention && op.CacheLayer() == op.Layer {
			ops = append(ops, op)
		}
	}
	if len(p.Ops) == 0 {
		for i := range p.Layers {
			ops = append(ops, &Op{Layer: i, KVHeads: p.KVHeads, HeadDim: p.HeadDim})
		}
	}
	return ops
}

// placed are the caches with a place of their own: all layers of an encoder have one.
func (p *Program) placed() []*Op {
	if p.Encoder() {
		return p.caches()[:1]
	}
	return p.caches()
}

// windows returns the window of each layer that has keys and values of its own, 0 where it sees all tokens: also where it sees as many as
// the longest sequence has, unless all of them have a window.
func (p *Program) windows() (windows []int) {
	full := false
	for _, op := range p.caches() {
		windows = append(windows, op.Window)
		full = full || op.Window == 0
	}
	for i, w := range windows {
		if full && w >= p.MaxPositions {
			windows[i] = 0
		}
	}
	return windows
}

// Window is the number of tokens that a token sees in any layer of a windowed group, itself included. It is at least 2. 0: there is no such
// group.
func (p *Program) Window() (tokens int) {
	if p.Groups().Windowed == 0 {
		return 0
	}
	for _, w := range p.windows() {
		if w > 0 {
			tokens = max(tokens, w, 2)
		}
	}
	return tokens
}
