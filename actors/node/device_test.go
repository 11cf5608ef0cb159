package node

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/kvmgr"
)

// testDevice is a Runner for tests of the pipeline alone: the likeliest next
// token depends on the token and its position. It checks that every position
// of a region is written once, in order, and backed by slabs that nobody else holds, and that what it begins with was
// computed.
type testDevice struct {
	slabs  int
	vocab  int
	window int // tokens that a token sees, itself included; 0: all
	groups kvmgr.Counts
	live   int // slabs of a windowed group that a sequence has at once at most

	mu         sync.Mutex
	owner      map[int32]int // physical slab -> regions that hold it
	written    map[int32]int // physical slab -> its tokens that are computed
	open       int
	faults     []error
	failAt     []int   // the steps that fail
	panicAt    int     // the step that panics; 0: none
	noWay      []error // what the next reloads return; none: they succeed
	reloads    int
	gate       chan struct{} // if not nil, a step takes a value first
	reloadGate chan struct{} // as gate
	held       sync.RWMutex  // while it is locked, no step ends
	begun      atomic.Int64  // steps, those at the gate included
	steps      int
	prompts    int  // that were begun
	rows       int  // of all steps
	largest    int  // rows of the largest step
	together   int  // the most sequences of a step
	drafts     int  // rows of draft tokens
	round      int  // tokens of a text that goes round; 0: it never does
	freed      bool // the gate is open
	maps       int  // slabs that were mapped or unmapped since the last step
	mostMaps   int  // between two steps
	mapFails   bool // the next slabs are not mapped
	unmapFails bool // the next slabs are not unmapped
	trims      int  // calls that unmapped first slabs
}

const testSlabTokens = 16

func newTestDevice(slabs int) *testDevice {
	return &testDevice{slabs: slabs, vocab: 4096, groups: kvmgr.Counts{Full: 1}, owner: map[int32]int{}, written: map[int32]int{}}
}

func (d *testDevice) Slabs() int       { return d.slabs }
func (d *testDevice) Mappings() int    { return 0 }
func (d *testDevice) Vocab() int       { return d.vocab }
func (d *testDevice) HiddenWidth() int { return testWidth }

func (d *testDevice) KV() kvmgr.Spec {
	full, window := kvmgr.Group(kvmgr.Full{}), kvmgr.Group(kvmgr.Window{Tokens: d.window, Live: d.live})
	groups := append(slices.Repeat([]kvmgr.Group{full}, d.groups.Full), slices.Repeat([]kvmgr.Group{window}, d.groups.Windowed)...)
	return kvmgr.NewSpec(testSlabTokens, groups...)
}

type testRegion struct {
	d      *testDevice
	tokens int
	groups []testGroup
	length int // positions written
	// drafts counts the last of them, those of draft tokens.
	drafts int
}

// testGroup is the slabs of a region for a group of layers.
type testGroup struct {
	slabs []int32
	first int // slabs before it are not mapped
}

func (d *testDevice) NewRegion(tokens int) (compute.Region, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open++
	return &testRegion{d: d, tokens: tokens, groups: make([]testGroup, d.groups.Count())}, nil
}

func (r *testRegion) Append(slabs []int32) error {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	if r.d.mapFails {
		r.d.mapFails = false
		return errors.New("no mapping")
	}
	if len(slabs)%len(r.groups) != 0 {
		return fmt.Errorf("%d slabs of %d groups", len(slabs), len(r.groups))
	}
	for i, id := range slabs {
		to := &r.groups[i%len(r.groups)]
		if id == -1 && i%len(r.groups) >= r.d.groups.Full && to.first == len(to.slabs) {
			to.slabs, to.first = append(to.slabs, -1), to.first+1
			continue
		}
		if id < 0 || int(id) >= r.d.slabs {
			return errors.New("no such slab")
		}
		r.d.owner[id]++
		r.d.maps++
		to.slabs = append(to.slabs, id)
	}
	return nil
}

func (r *testRegion) Unmap(n int) (unmapped int, err error) {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	for ; unmapped < n && len(r.groups[0].slabs) > r.groups[0].first; unmapped += len(r.groups) {
		last := len(r.groups[0].slabs) - 1
		for i := range r.groups {
			g := &r.groups[i]
			r.unmap(g.slabs[max(last, g.first):])
			g.slabs, g.first = g.slabs[:last], min(g.first, last)
		}
	}
	return unmapped, nil
}

func (r *testRegion) Advance(first int) error {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	if r.d.unmapFails && first > 0 {
		r.d.unmapFails = false
		return errors.New("no mapping")
	}
	for i := range r.groups {
		if i < r.d.groups.Full {
			continue
		}
		g := &r.groups[i]
		for r.d.groups.Full == 0 && len(g.slabs) == g.first && g.first < first {
			g.slabs, g.first = append(g.slabs, -1), g.first+1
		}
		if first > len(g.slabs) {
			return fmt.Errorf("no slab at %d, %d are mapped", first, len(g.slabs))
		}
		if first > g.first {
			r.unmap(g.slabs[g.first:first])
			g.first = first
			r.d.trims++
		}
	}
	return nil
}

func (r *testRegion) Close() {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	for _, g := range r.groups {
		r.unmap(g.slabs[g.first:])
	}
	r.d.open--
}

func (r *testRegion) unmap(slabs []int32) {
	r.d.maps += len(slabs)
	for _, id := range slabs {
		if r.d.owner[id]--; r.d.owner[id] == 0 {
			delete(r.d.owner, id)
		}
	}
}

// CopySlab copies the first tokens of a slab.
func (d *testDevice) CopySlab(from, to int32, tokens int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.written[from] < tokens {
		return fmt.Errorf("%d tokens copied from slab %d, which has %d", tokens, from, d.written[from])
	}
	d.written[to] = tokens
	return nil
}

// SlabLayout of test devices: a slab's bytes are the number of its tokens that are computed.
func (d *testDevice) SlabLayout() string { return "test" }
func (d *testDevice) SlabBytes() int     { return 1 }

// ReadSlab copies the number.
func (d *testDevice) ReadSlab(slab int32, to []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	to[0] = byte(d.written[slab])
	return nil
}

// WriteSlab takes it.
func (d *testDevice) WriteSlab(slab int32, from []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owner[slab] > 0 {
		d.faults = append(d.faults, fmt.Errorf("slab %d is written from outside, and %d regions hold it", slab, d.owner[slab]))
	}
	d.written[slab] = int(from[0])
	return nil
}

// write notes a token of a region, and what is wrong with it.
func (r *testRegion) write(position int) {
	for i := range r.groups {
		g := &r.groups[i]
		if seen := r.d.seen(position, i); seen < g.first {
			r.d.faults = append(r.d.faults, fmt.Errorf("a row at %d sees slab %d of group %d, slabs from %d on are mapped", position, seen,
				i,
				g.first))
		}
		slab, at := g.slabs[position/testSlabTokens], position%testSlabTokens
		if r.d.owner[slab] != 1 {
			r.d.faults = append(r.d.faults, fmt.Errorf("a row in slab %d, which %d regions hold", slab, r.d.owner[slab]))
		}
		r.d.written[slab] = at + 1
	}
}

// shared checks that the tokens of a region before its first row are computed.
func (r *testRegion) shared(tokens int) {
	for i := range r.groups {
		g := &r.groups[i]
		for at := g.first * testSlabTokens; at < tokens; at++ {
			if slab := g.slabs[at/testSlabTokens]; r.d.written[slab] <= at%testSlabTokens {
				r.d.faults = append(r.d.faults, fmt.Errorf("token %d in slab %d of group %d is not computed", at, slab, i))
				return
			}
		}
	}
}

// seen is the first slab of a group that the token at a position sees.
func (d *testDevice) seen(position, group int) int {
	if d.window == 0 || group < d.groups.Full {
		return 0
	}
	return max(0, position-d.window+1) / testSlabTokens
}

// nextToken is the device's "model".
func nextToken(token int32, position, vocab int) int32 {
	return int32((uint64(token)*2654435761 + uint64(position)*40503 + 12345) % uint64(vocab))
}

func (d *testDevice) Reload() (err error) {
	if d.reloadGate != nil {
		<-d.reloadGate
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open > 0 {
		d.faults = append(d.faults, fmt.Errorf("reloaded with %d regions open", d.open))
	}
	d.reloads++
	if len(d.noWay) > 0 {
		err, d.noWay = d.noWay[0], d.noWay[1:]
	}
	return err
}

func (d *testDevice) logits(token int32, position int) []float32 {
	logits := make([]float32, d.vocab)
	if d.round > 0 {
		logits[(int(token)+1)%d.round] = 1
	} else {
		logits[nextToken(token, position, d.vocab)] = 1
	}
	return logits
}

// computed is the number of rows of all steps.
func (d *testDevice) computed() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rows
}

// reloaded is the number of calls of Reload.
func (d *testDevice) reloaded() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reloads
}

type testLogits struct{ rows, hidden [][]float32 }

func (l *testLogits) Row(i int) []float32    { return l.rows[i] }
func (l *testLogits) Hidden(i int) []float32 { return l.hidden[i] }

const testWidth = 4

// hiddenState is the device's hidden state of a token. Sums of thirds depend on their order.
func hiddenState(token int32, position int) []float32 {
	return []float32{float32(token) / 3, float32(position) / 3, float32(token*7+int32(position)*5) / 3, 1}
}

func (d *testDevice) Run(batch []compute.Rows) (compute.Logits, error) {
	d.begun.Add(1)
	if d.gate != nil {
		<-d.gate
	}
	d.held.RLock()
	defer d.held.RUnlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps++
	d.mostMaps, d.maps = max(d.mostMaps, d.maps), 0
	if slices.Contains(d.failAt, d.steps) {
		return nil, errors.New("lost the device")
	}
	if d.steps == d.panicAt {
		panic("a bug")
	}
	out := &testLogits{}
	rows := 0
	for _, b := range batch {
		r := b.Region.(*testRegion)
		if b.Beams != nil {
			rows += len(b.Tokens)
			for i, token := range b.Tokens {
				if len(b.Beams.Responses[i].(*testRegion).groups[0].slabs)*testSlabTokens <= b.Position-b.Beams.Prompt {
					d.faults = append(d.faults, errors.New("a beam without a slab"))
				}
				out.rows = append(out.rows, d.logits(token, b.Position))
			}
			continue
		}
		if r.length == 0 {
			r.shared(b.Position)
			r.length = b.Position
		}
		// After draft tokens that were refused the rows go back.
		if b.Position > r.length || b.Position < r.length-r.drafts || b.Position+len(b.Tokens) > len(r.groups[0].slabs)*testSlabTokens {
			d.faults = append(d.faults, fmt.Errorf("%d rows at %d, expected them at %d, after %d draft tokens, and slabs for them: found %d", len(b.Tokens), b.Position, r.length, r.drafts, len(r.groups[0].slabs)))
		}
		if b.Position == 0 {
			d.prompts++
		}
		for i := range b.Tokens {
			r.write(b.Position + i)
		}
		r.length, r.drafts = b.Position+len(b.Tokens), b.Drafts
		rows += len(b.Tokens)
		d.drafts += b.Drafts
		for i := len(b.Tokens) - b.Outputs(); i < len(b.Tokens); i++ {
			if len(out.hidden) > 0 {
				d.faults = append(d.faults, errors.New("logits after hidden states"))
			}
			out.rows = append(out.rows, d.logits(b.Tokens[i], b.Position+i))
		}
		for i := len(b.Tokens) - b.Hidden; i < len(b.Tokens); i++ {
			out.hidden = append(out.hidden, hiddenState(b.Tokens[i], b.Position+i))
		}
	}
	d.together = max(d.together, len(batch))
	d.rows += rows
	d.largest = max(d.largest, rows)
	return out, nil
}
