package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/kvmgr"
)

// Options describe the device to simulate and its sizes.
type Options struct {
	Program *model.Program
	Device  Device

	MaxRows      int   // rows per step
	MaxOutputs   int   // output rows per step
	MaxHidden    int   // rows per step whose hidden states are read, beside those
	MaxSequences int   // sequences that the KV pool need hold at most, at full length
	StateSlabs   int   // slabs of the state that layers of a sequence keep; 0: as many as that of the program needs
	KVMemory     int64 // bytes of the KV pool; 0: what the weights leave of the device's memory

	Behavior
	Text []int32 // tokens to answer with; nil: any
	End  []int32 // tokens that end an answer; the first is used
}

// MemoryShare is the share of the device's memory for weights and KV cache. Activations and the
// driver have the rest.
const MemoryShare = 0.9

// Runner is a simulated device with its KV pool: a compute.Runner.
type Runner struct {
	options Options
	timer   *Timer
	pacer   pacer
	fault   fault
	steps   uint64
	stop    chan struct{} // closed by Close: a step that hangs ends
	started []started     // and not drawn
	drawn   []int32       // what the last one draws
	ends    time.Time     // when that ends

	slabs  int
	spec   kvmgr.Spec
	kv     []state // [slabs x SlabTokens]
	logits logits  // [MaxOutputs x vocab]
}

var (
	_ compute.Runner = (*Runner)(nil)
	_ compute.Ahead  = (*Runner)(nil)
)

// Open returns a runner with an empty pool.
func Open(o Options) (*Runner, error) {
	if err := o.Device.Validate(); err != nil {
		return nil, err
	}
	if o.MaxRows < 1 || o.MaxOutputs < 1 || o.MaxSequences < 1 || o.AnswerTokens < 0 || !(o.Speed >= 0) {
		return nil,
			fmt.Errorf("sim: %w: %d rows, %d outputs, %d sequences, answers of %d tokens, speed %g: expected at least 1, 1, 1, 0, 0",
				device.ErrInvalid, o.MaxRows, o.MaxOutputs, o.MaxSequences, o.AnswerTokens, o.Speed)
	}
	if _, err := o.Device.Share(o.Program); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	vocab := o.Program.Vocab
	if o.Text != nil && len(o.Text) == 0 || slices.ContainsFunc(o.Text, func(id int32) bool { return id < 0 || int(id) >= vocab }) {
		return nil, fmt.Errorf("sim: %w: %d tokens to answer with, expected at least one, below %d", device.ErrInvalid, len(o.Text), vocab)
	}
	r := &Runner{
		options: o, timer: NewTimer(o.Program, o.Device, o.MaxRows, o.MaxOutputs),
		pacer: pacer{now: time.Now, sleep: time.Sleep}, //nolint:forbidigo // a step takes time: that is what it does
		stop:  make(chan struct{}),
	}
	var err error
	if r.fault, err = parseFault(o.Fault); err != nil {
		return nil, err
	}
	if r.slabs, err = PoolSlabs(&r.options); err != nil {
		return nil, err
	}
	if r.spec = compute.KV(o.Program, device.ProgramInfo{}, o.MaxRows, r.slabs); o.stateSlabs() > 0 {
		r.spec = compute.StateKV(o.stateSlabs(), o.MaxRows, false) // it keeps a hash of each token
	}
	r.kv = make([]state, r.slabs*device.SlabTokens)
	width := o.Program.HiddenWidth()
	r.logits = logits{
		words: words{text: o.Text, end: -1, mean: uint64(o.AnswerTokens)}, vocab: vocab, width: width,
		states: make([]state, o.MaxOutputs), made: make([]bool, o.MaxOutputs), blank: slices.Repeat([]float32{flat}, vocab),
		values: make([]float32, o.MaxOutputs*vocab), hidden: make([]float32, o.MaxHidden*width),
	}
	if len(o.End) > 0 && o.End[0] >= 0 && int(o.End[0]) < vocab {
		r.logits.words.end = o.End[0]
	}
	return r, nil
}

// PoolSlabs returns the number of slabs of the KV pool: as many as KVMemory holds, or as the weights
// leave of the device's memory, at most as many as the sequences can use.
func PoolSlabs(o *Options) (int, error) {
	slab := SlabBytes(o.Program)
	longest := o.Program.MaxPositions
	if e := o.Program.Eviction; e.Sinks > 0 {
		longest = min(longest, e.Sinks+e.Window+2*o.MaxRows+4*device.SlabTokens)
	}
	most := o.MaxSequences * (o.Program.Groups().Count()*device.Slabs(longest) + 2*o.stateSlabs()) // a state, and a snapshot
	switch {
	case o.KVMemory > 0:
		return kvmgr.SlabsIn(uint64(o.KVMemory), slab)
	case o.Device.Memory == 0:
		return most, nil
	}
	memory := uint64(o.Device.TotalMemory() * MemoryShare)
	slabs, err := kvmgr.SizePool(memory, WeightBytes(o.Program), 0, 1, slab)
	if err != nil {
		return 0, fmt.Errorf("sim: %s has %g GB: %w", o.Device.ID, o.Device.TotalMemory()/1e9, err)
	}
	return min(slabs, most), nil
}

// stateSlabs is the number of slabs of a sequence's state.
func (o *Options) stateSlabs() int {
	return max(o.StateSlabs, o.Program.StateSlabs(int64(SlabBytes(o.Program))))
}

// SlabBytes is the size of a KV slab.
func SlabBytes(p *model.Program) uint64 { return uint64(compute.SlabBytes(p)) }

// WeightBytes returns the size of a program's weights on a device: the weights that a step reads,
// and the whole of the tables of which it reads rows. Tables whose rows are added stay in the file that is mapped.
func WeightBytes(p *model.Program) uint64 {
	sizes := model.BF16Sizes()
	var sum int64
	for i, c := range model.Costs(p, model.Work{Rows: 1, Outputs: 1}, sizes) {
		op := &p.Ops[i]
		if op.Kind != model.OpEmbed {
			sum += c.WeightBytes
			continue
		}
		if op.Accumulate {
			continue
		}
		for _, table := range []int{op.Weight, op.Bias} {
			if table != model.None {
				shape := p.Tensors[table].Shape
				sum += shape[0] * shape[1] * int64(sizes.Weight)
			}
		}
	}
	return uint64(sum)
}

// Slabs is the number of physical slabs of the pool.
func (r *Runner) Slabs() int { return r.slabs }

// KV is what a sequence keeps.
func (r *Runner) KV() kvmgr.Spec { return r.spec }

// Vocab is the number of logits per output.
func (r *Runner) Vocab() int { return r.logits.vocab }

// HiddenWidth is the number of elements of a hidden state.
func (r *Runner) HiddenWidth() int { return r.logits.width }

// Reload empties the pool. All regions must be closed.
func (r *Runner) Reload() error {
	clear(r.kv)
	r.started, r.drawn = nil, nil
	return nil
}

// Close ends a step that hangs. The runner must not be used after it.
func (r *Runner) Close() { close(r.stop) }

// Run runs one step. It takes as long as the device would, and rejects the same invalid batches as a
// real device.
func (r *Runner) Run(batch []compute.Rows) (compute.Logits, error) {
	if len(r.started) > 0 {
		return nil, fmt.Errorf("sim: %w: %d steps are started and not drawn, expected none", device.ErrInvalid, len(r.started))
	}
	r.drawn = nil
	begin := r.pacer.now()
	if _, err := r.step(batch); err != nil {
		return nil, err
	}
	if r.options.Speed > 0 {
		r.pacer.wait(r.pacer.due(begin, begin, r.took()))
	}
	return &r.logits, nil
}

// step computes what follows from a batch, and returns its number of outputs.
func (r *Runner) step(batch []compute.Rows) (int, error) {
	if err := r.inject(); err != nil {
		return 0, err
	}
	r.timer.Begin()
	rows, outputs, hidden := 0, 0, 0
	for i := range batch {
		s := &batch[i]
		wanted := s.Outputs()
		rows, outputs, hidden = rows+len(s.Tokens), outputs+wanted, hidden+s.Hidden
		if rows > r.options.MaxRows || outputs > r.options.MaxOutputs || hidden > r.options.MaxHidden {
			return 0, fmt.Errorf("sim: %w: over %d rows, %d outputs or %d hidden states", device.ErrInvalid, r.options.MaxRows,
				r.options.MaxOutputs, r.options.MaxHidden)
		}
		if hidden > 0 && wanted > 0 {
			return 0, fmt.Errorf("sim: %w: sequence %d has logits after or beside hidden states", device.ErrInvalid, i)
		}
		if err := r.sequence(s, outputs-wanted, hidden-s.Hidden); err != nil {
			return 0, fmt.Errorf("sim: %w: sequence %d: %w", device.ErrInvalid, i, err)
		}
	}
	return outputs, nil
}

// took is the time of the last step on the device.
func (r *Runner) took() time.Duration { return seconds(r.timer.End().Device / r.options.Speed) }

// started is a step of Start.
type started struct {
	due    time.Time // when it ends
	tokens []int32   // that it draws
}

// mostStarted is the number of steps that may be started at a time.
const mostStarted = 2

// RunsAhead is true: the device takes a step while it runs another.
func (r *Runner) RunsAhead() bool { return true }

// Start starts a step. What it draws is known at once, and said when the step ends.
func (r *Runner) Start(batch []compute.Rows, draws []sample.Draw) error {
	if len(r.started) == mostStarted {
		return fmt.Errorf("sim: %w: %d steps are started and not drawn, expected fewer", device.ErrInvalid, mostStarted)
	}
	begin := r.pacer.now()
	outputs, err := r.step(r.known(batch))
	if err != nil {
		return err
	}
	if len(draws) != 0 && len(draws) != outputs {
		return fmt.Errorf("sim: %w: %d draws, expected none or one for each of %d outputs", device.ErrInvalid, len(draws), outputs)
	}
	s := started{tokens: make([]int32, outputs)}
	if len(draws) > 0 {
		if err := r.logits.Draw(draws, s.tokens); err != nil {
			return err
		}
	} else {
		for i := range s.tokens {
			s.tokens[i], _ = r.logits.Best(i)
		}
	}
	if r.options.Speed > 0 {
		s.due = r.pacer.due(begin, r.ends, r.took())
		r.ends = s.due
	}
	r.started = append(r.started, s)
	r.drawn = s.tokens
	return nil
}

// known returns a batch with the tokens that the step before has drawn for it. One that it did not draw is any: nobody wants its row.
func (r *Runner) known(batch []compute.Rows) []compute.Rows {
	batch = slices.Clone(batch)
	for i := range batch {
		tokens := slices.Clone(batch[i].Tokens)
		for j, token := range tokens {
			if from := -1 - int(token); token < 0 && from < len(r.drawn) {
				tokens[j] = max(r.drawn[from], 0)
			}
		}
		batch[i].Tokens = tokens
	}
	return batch
}

// Drawn waits until the oldest step has ended.
func (r *Runner) Drawn(tokens []int32) error {
	if len(r.started) == 0 || len(tokens) != len(r.started[0].tokens) {
		return fmt.Errorf("sim: %w: %d tokens of %d steps that are started", device.ErrInvalid, len(tokens), len(r.started))
	}
	s := r.started[0]
	r.started = slices.Delete(r.started, 0, 1)
	if r.options.Speed > 0 {
		r.pacer.wait(s.due)
	}
	copy(tokens, s.tokens)
	return nil
}

// inject fails the step, or blocks until Close, if the fault hits it.
func (r *Runner) inject() error {
	r.steps++
	if !r.fault.hits(r.steps) {
		return nil
	}
	if r.fault.kind == "hang" {
		<-r.stop
	}
	return fmt.Errorf("sim: run step: %w: %s", device.ErrDevice, r.fault.text())
}
