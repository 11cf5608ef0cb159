package actors

import (
	"errors"
	"sync"

	"github.com/millrace/millrace/compute"
)

// testDevice is a Runner for tests of the pipeline alone: the likeliest next
// token depends on the token and its position. It checks that every position
// of a region is written once, in order, and backed by slabs that are its own.
type testDevice struct {
	slabs int
	vocab int

	mu      sync.Mutex
	owner   map[int32]*testRegion // physical slab -> region
	open    int
	faults  []error
	failAt  int           // the step that fails; 0: none
	gate    chan struct{} // if not nil, a step takes a value first
	steps   int
	largest int // rows of the largest step
}

const testSlabTokens = 16

func newTestDevice(slabs int) *testDevice {
	return &testDevice{slabs: slabs, vocab: 4096, owner: map[int32]*testRegion{}}
}

func (d *testDevice) Slabs() int      { return d.slabs }
func (d *testDevice) SlabTokens() int { return testSlabTokens }
func (d *testDevice) Vocab() int      { return d.vocab }

type testRegion struct {
	d      *testDevice
	tokens int
	slabs  []int32
	length int // positions written
}

func (d *testDevice) NewRegion(tokens int) (compute.Region, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open++
	return &testRegion{d: d, tokens: tokens}, nil
}

func (r *testRegion) Append(slabs []int32) error {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	for _, id := range slabs {
		if id < 0 || int(id) >= r.d.slabs || r.d.owner[id] != nil {
			return errors.New("slab is not free")
		}
		r.d.owner[id] = r
	}
	r.slabs = append(r.slabs, slabs...)
	return nil
}

func (r *testRegion) Close() {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	for _, id := range r.slabs {
		delete(r.d.owner, id)
	}
	r.d.open--
}

// nextToken is the device's "model".
func nextToken(token int32, position, vocab int) int32 {
	return int32((uint64(token)*2654435761 + uint64(position)*40503 + 12345) % uint64(vocab))
}

type testLogits [][]float32

func (l testLogits) Row(i int) []float32 { return l[i] }

func (d *testDevice) Run(batch []compute.Rows) (compute.Logits, error) {
	if d.gate != nil {
		<-d.gate
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps++
	if d.steps == d.failAt {
		return nil, errors.New("lost the device")
	}
	var out testLogits
	rows := 0
	for _, b := range batch {
		r := b.Region.(*testRegion)
		if b.Position != r.length || b.Position+len(b.Tokens) > len(r.slabs)*testSlabTokens {
			d.faults = append(d.faults, errors.New("a row out of order or without a slab"))
		}
		r.length += len(b.Tokens)
		rows += len(b.Tokens)
		if b.Output {
			logits := make([]float32, d.vocab)
			logits[nextToken(b.Tokens[len(b.Tokens)-1], b.Position+len(b.Tokens)-1, d.vocab)] = 1
			out = append(out, logits)
		}
	}
	d.largest = max(d.largest, rows)
	return out, nil
}
