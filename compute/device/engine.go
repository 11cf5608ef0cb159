package device

/*
#include "backend.h"
*/
import "C"

import (
	"fmt"
	"math"
	"sync"
	"time"
	"unsafe"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/weights"
	"github.com/millrace/millrace/kvmgr"
)

// SlabTokens is the number of tokens of a KV slab.
const SlabTokens = C.MR_SLAB_TOKENS

// Limits bound a step of an engine.
type Limits struct {
	MaxRows    int // rows (tokens) per step
	MaxOutputs int // rows per step of which logits are wanted
	MaxHidden  int // rows per step of which hidden states are wanted, beside those; 0: none
}

// ProgramInfo is what a loaded program costs.
type ProgramInfo struct {
	WeightBytes     uint64 `json:"weight_bytes"`
	ActivationBytes uint64 `json:"activation_bytes"`
	SlabBytes       uint64 `json:"slab_bytes"`
	MaxSlabs        int    `json:"max_slabs"`            // that ReserveKV takes
	HeadSlabs       int    `json:"head_slabs,omitempty"` // of a region, before those of its tokens
	KVType          string `json:"kv_type"`              // of keys and values: "f32", "f16", "bf16", "int8", "int4", "kivi"
	Linear          string `json:"linear"`               // what runs the linear ops
}

// Engine is a program loaded on a device, with its step buffers.
type Engine struct {
	dev     *Device
	handle  *C.mr_program
	program *model.Program // of rank 0
	limits  Limits
	vocab   int // logits of an output
	groups  model.Groups
	need    kvmgr.Need // of a sequence in each group, in which it keeps all slabs that it has
	sinks   int        // leading slabs that a region keeps when it advances
	width   int        // of a hidden state
	info    ProgramInfo

	// The step under construction, in C memory so that no Go pointer crosses.
	tokens    []int32         // [MaxRows]
	sequences []C.mr_sequence // [MaxRows]
	outputs   []int32         // [MaxOutputs + MaxHidden]
	logits    []float32       // [MaxOutputs x vocab]
	best      []int32         // [MaxOutputs] where logits stay on the device, else nil
	read      []bool          // [MaxOutputs]: rows of logits that have been read from there
	reading   sync.Mutex
	failed    error          // of reading them
	draws     []C.mr_draw    // of a call of Draw
	masks     []uint32       // likewise
	hidden    []float32      // [MaxHidden x width]
	opTimes   []C.mr_op_time // [ops]
	beams     beamArrays
}

// Load checks p, binds and packs its weights. The checkpoint must stay open
// until the engine is closed.
func (d *Device) Load(p *model.Program, w Tensors, lim Limits) (*Engine, error) {
	return d.LoadPacked(p, w, lim, nil)
}

// LoadPacked is Load with the weights that Packed gave for the same program, KernelsID, backend
// and ISA, one slice after the other. They are aligned to 64 bytes and stay in place until the
// engine is closed.
func (d *Device) LoadPacked(p *model.Program, w Tensors, lim Limits, packed []byte) (*Engine, error) {
	if lim.MaxRows < 1 || lim.MaxOutputs < 1 || lim.MaxHidden < 0 {
		return nil, fmt.Errorf("%w: limits of %d rows, %d outputs and %d hidden states per step, expected at least 1, 1 and 0",
			ErrInvalid, lim.MaxRows, lim.MaxOutputs, lim.MaxHidden)
	}
	programs, err := p.Split(d.ranks)
	if err != nil {
		return nil, fmt.Errorf("load program: %w: %w", ErrUnsupported, err)
	}
	b := &binder{weights: newWeightsInUse(w, programs)}
	defer b.free()
	descs, err := b.programs(programs, lim)
	if err != nil {
		return nil, err
	}
	defer b.weights.describe(programs, descs)()
	descs[0].packed, descs[0].packed_bytes = unsafe.Pointer(unsafe.SliceData(packed)), C.uint64_t(len(packed))
	e := &Engine{dev: d, program: programs[0], limits: lim, vocab: p.Logits(), groups: p.Groups(), sinks: p.SinkSlabs(SlabTokens),
		width: p.HiddenWidth()}
	var me C.mr_error
	if C.mr_program_load(d.backend, d.handle, &descs[0], &e.handle, &me) != C.MR_OK {
		return nil, fail("load program", &me)
	}
	if err := b.weights.failed(); err != nil {
		e.Close()
		return nil, err
	}
	var i C.mr_program_info
	if C.mr_program_get_info(d.backend, e.handle, &i, &me) != C.MR_OK {
		e.Close()
		return nil, fail("program info", &me)
	}
	e.info = ProgramInfo{
		WeightBytes:     uint64(i.weight_bytes),
		ActivationBytes: uint64(i.activation_bytes),
		SlabBytes:       uint64(i.slab_bytes),
		MaxSlabs:        int(i.max_slabs),
		HeadSlabs:       int(i.head_slabs),
		KVType:          kvType(i.kv_type),
		Linear:          C.GoString(&i.linear[0]),
	}
	e.need = kvmgr.NewSpec(SlabTokens, p.Eviction.Group(e.info.HeadSlabs, SlabTokens)).Need()
	var device C.mr_device_info
	if C.mr_device_get_info(d.backend, d.handle, &device, &me) != C.MR_OK {
		e.Close()
		return nil, fail("device info", &me)
	}
	if err := e.allocate(len(e.program.Ops), device.keeps_logits != 0); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func kvType(t C.int32_t) string {
	if t == C.MR_KV_F32 { // of ref alone
		return "f32"
	}
	return model.KVType(t).String()
}

// Tensors finds a weight by its name. Some are made of others, and need not be in memory when nothing reads them.
type Tensors interface {
	Tensor(name string) (weights.Tensor, bool)
	Reserved(name string) (weights.Tensor, bool) // with the addresses of its data, which may not be there
	Use(names []string)                          // their data is there until Forget is called as often
	Forget(names []string) error
}

func (e *Engine) allocate(ops int, keepsLogits bool) error {
	e.read = make([]bool, e.limits.MaxOutputs)
	ok := cSlice(&e.tokens, e.limits.MaxRows) &&
		cSlice(&e.sequences, e.limits.MaxRows) &&
		cSlice(&e.outputs, e.limits.MaxOutputs+e.limits.MaxHidden) &&
		cSlice(&e.logits, e.limits.MaxOutputs*e.vocab) &&
		(!keepsLogits || cSlice(&e.best, e.limits.MaxOutputs)) &&
		cSlice(&e.hidden, e.limits.MaxHidden*e.width) &&
		cSlice(&e.opTimes, ops) &&
		e.beams.allocate(e.limits.MaxRows)
	if !ok {
		return fmt.Errorf("%w: step buffers for %d rows and %d outputs x %d logits",
			ErrNoMemory, e.limits.MaxRows, e.limits.MaxOutputs, e.vocab)
	}
	return nil
}

// Close frees the program and its buffers. Its regions must be closed before.
func (e *Engine) Close() {
	if e.handle != nil {
		C.mr_program_unload(e.dev.backend, e.handle)
		e.handle = nil
	}
	cFree(&e.tokens)
	cFree(&e.sequences)
	cFree(&e.outputs)
	cFree(&e.logits)
	cFree(&e.best)
	cFree(&e.hidden)
	cFree(&e.opTimes)
	e.beams.free()
}

// KernelsID names the build of the kernels of the backends cpu and ref; "" where it is not known.
const KernelsID = C.MILLRACE_KERNELS_ID

// Packed returns the packed weights, for LoadPacked; nothing of a backend that takes none.
// They are valid until Close.
func (e *Engine) Packed() ([][]byte, error) {
	var all [][]byte
	for {
		var span C.mr_span
		var me C.mr_error
		if C.mr_program_get_packed(e.dev.backend, e.handle, C.int32_t(len(all)), &span, &me) != C.MR_OK {
			return nil, fail("packed weights", &me)
		}
		if span.data == nil {
			return all, nil
		}
		all = append(all, unsafe.Slice((*byte)(span.data), int(span.bytes)))
	}
}

// Numerics names what the bits of the engine's results depend on beside its program, its weights
// and the step: "<backend> <numerics version> <class>", e.g. "cpu 1 x86-fma". It is of the kernels
// that were loaded, some of which timings chose. Engines of the same program and weights with
// equal texts give equal bits, whatever machine they are on.
func (e *Engine) Numerics() (string, error) {
	var text *C.char
	var me C.mr_error
	if C.mr_program_get_numerics(e.dev.backend, e.handle, &text, &me) != C.MR_OK {
		return "", fail("numerics", &me)
	}
	return C.GoString(text), nil
}

// Program is what rank 0 runs: the program that was loaded, or a share of it.
func (e *Engine) Program() *model.Program { return e.program }

// Info says what the program costs.
func (e *Engine) Info() ProgramInfo { return e.info }

// Limits of a step.
func (e *Engine) Limits() Limits { return e.limits }

// Vocab is the number of logits per output row: of classes, or of tokens.
func (e *Engine) Vocab() int { return e.vocab }

// Rows are the tokens of one sequence in a step. Earlier positions of the
// sequence are in its region already.
type Rows struct {
	Region      *Region
	Tokens      []int32 // at Position, Position+1, ...
	Position    int
	OutputsFrom int    // logits are wanted of Tokens[OutputsFrom:]
	Second      int    // of an encoder: the position from which Tokens are of a pair's second text; 0: all are of the first
	Hidden      bool   // hidden states are wanted of them in place of logits; such sequences are the last ones of a step
	Beams       *Beams // nil: none. Else Tokens are one of each beam, all at Position
}

// Logits are the output rows of a step, valid until the next Run.
type Logits struct {
	e      *Engine
	rows   int
	hidden []float32
}

// Hidden returns hidden state i of the step, of the model's width: what the last op reads.
func (l Logits) Hidden(i int) []float32 {
	return l.hidden[i*l.e.width : (i+1)*l.e.width : (i+1)*l.e.width]
}

// Rows is the number of output rows.
func (l Logits) Rows() int { return l.rows }

// Row returns the logits of output row i, in the order of the step's
// sequences. They may be overwritten. Those of a device that keeps them are copied
// from there at the first call; what fails then leaves NaNs, and the next Run says what it was.
func (l Logits) Row(i int) []float32 {
	e := l.e
	row := e.logits[i*e.vocab : (i+1)*e.vocab : (i+1)*e.vocab]
	if e.best == nil {
		return row
	}
	e.reading.Lock()
	defer e.reading.Unlock()
	if e.read[i] {
		return row
	}
	e.read[i] = true
	var me C.mr_error
	if C.mr_program_get_logits(e.dev.backend, e.handle, C.int32_t(i), (*C.float)(unsafe.SliceData(row)), &me) != C.MR_OK {
		e.failed = fail("read logits", &me)
		for j := range row {
			row[j] = float32(math.NaN())
		}
	}
	return row
}

// Best returns the token of the largest logit of row i, of equal ones the lowest. False: the device does not say, or a
// logit is NaN or +Inf, or all are -Inf.
func (l Logits) Best(i int) (int32, bool) {
	if l.e.best == nil || l.e.best[i] < 0 {
		return 0, false
	}
	return l.e.best[i], true
}

// Draw draws tokens from rows of a device that keeps its logits. A token below 0: the device does not say, and Row has the logits.
func (l Logits) Draw(draws []sample.Draw, tokens []int32) error {
	e := l.e
	if e.best == nil {
		for i := range draws {
			tokens[i] = -1
		}
		return nil
	}
	words := (e.vocab + 31) / 32
	e.setDraws(draws)
	var me C.mr_error
	if C.mr_program_draw_tokens(e.dev.backend, e.handle, unsafe.SliceData(e.draws), C.int32_t(len(draws)),
		(*C.uint32_t)(unsafe.SliceData(e.masks)), C.int32_t(len(e.masks)/words), (*C.int32_t)(unsafe.SliceData(tokens)),
		&me) != C.MR_OK {
		return fail("draw tokens", &me)
	}
	return nil
}

// setDraws copies draws and their masks to where the backend reads them.
func (e *Engine) setDraws(draws []sample.Draw) {
	words := (e.vocab + 31) / 32
	e.draws, e.masks = e.draws[:0], e.masks[:0]
	for i := range draws {
		d := &draws[i]
		draw := C.mr_draw{
			row: C.int32_t(d.Row), top_k: C.int32_t(d.TopK), per_nat: C.float(d.PerNat), mask: -1,
			top_p: C.uint64_t(d.TopP), least: C.uint64_t(d.Least), random: C.uint64_t(d.Random),
		}
		if d.Mask != nil {
			draw.mask = C.int32_t(len(e.masks) / words)
			e.masks = append(e.masks, d.Mask[:min(words, len(d.Mask))]...)
			e.masks = append(e.masks, make([]uint32, words-min(words, len(d.Mask)))...)
		}
		e.draws = append(e.draws, draw)
	}
}

// RunsAhead reports whether the device takes steps by Start.
func (e *Engine) RunsAhead() bool { return e.best != nil }

// Start starts a step, and a draw from each of its outputs, in their order: without draws the tokens of the largest logits. It returns
// before the device has done them. Up to two steps are started at a time. A token of -1-i is what the step that was started before it
// draws from output i.
func (e *Engine) Start(batch []Rows, draws []sample.Draw) error {
	if e.failed != nil {
		return fmt.Errorf("start step: %w", e.failed)
	}
	step, err := e.step(batch)
	if err != nil {
		return err
	}
	if outputs := int(step.outputs); len(draws) != 0 && len(draws) != outputs {
		return fmt.Errorf("start step: %w: %d draws, expected none or one for each of %d outputs", ErrInvalid, len(draws), outputs)
	}
	e.setDraws(draws)
	step.logits = nil
	var all *C.mr_draw
	if len(draws) > 0 {
		all = unsafe.SliceData(e.draws)
	}
	var me C.mr_error
	if C.mr_program_start_step(e.dev.backend, e.handle, &step, all, &me) != C.MR_OK {
		return fail("start step", &me)
	}
	return nil
}

// Drawn waits for the oldest step of Start, and returns the token of each of its outputs in tokens: below 0 where the device does not say,
// as in Draw.
func (e *Engine) Drawn(tokens []int32) error {
	var me C.mr_error
	if C.mr_program_get_drawn(e.dev.backend, e.handle, (*C.int32_t)(unsafe.SliceData(tokens)), C.int32_t(len(tokens)), &me) != C.MR_OK {
		return fail("drawn tokens", &me)
	}
	return nil
}

// Run runs one step over all rows of the batch and returns the wanted
// logits. A row's logits do not depend on the rest of the batch, bit for bit.
func (e *Engine) Run(batch []Rows) (Logits, error) { return e.run(batch, nil) }

// OpTime is what an op of a step took: by the device's clock where Options has
// Profile and the device has one, else by the wall clock.
type OpTime struct {
	Time     time.Duration
	Launches int // of kernels; 0 for an op without rows
}

// RunTimed is Run op by op, with the time of each in the program's order.
func (e *Engine) RunTimed(batch []Rows) (Logits, []OpTime, error) {
	l, err := e.run(batch, e.opTimes)
	if err != nil {
		return Logits{}, nil, err
	}
	times := make([]OpTime, len(e.opTimes))
	for i, t := range e.opTimes {
		times[i] = OpTime{Time: time.Duration(t.nanoseconds), Launches: int(t.launches)}
	}
	return l, times, nil
}

func (e *Engine) run(batch []Rows, opTimes []C.mr_op_time) (Logits, error) {
	if e.failed != nil {
		return Logits{}, fmt.Errorf("run step: %w", e.failed)
	}
	step, err := e.step(batch)
	if err != nil {
		return Logits{}, err
	}
	if e.best != nil {
		step.logits, step.best = nil, (*C.int32_t)(unsafe.SliceData(e.best))
		clear(e.read)
	}
	if opTimes != nil {
		step.op_times = unsafe.SliceData(opTimes)
	}
	var me C.mr_error
	if C.mr_program_run(e.dev.backend, e.handle, &step, &me) != C.MR_OK {
		return Logits{}, fail("run step", &me)
	}
	hidden := int(step.hidden_outputs)
	return Logits{e, int(step.outputs) - hidden, e.hidden[:hidden*e.width]}, nil
}

// step fills the arrays of a step.
func (e *Engine) step(batch []Rows) (C.mr_step, error) {
	rows, outputs, hidden := 0, 0, 0
	if err := e.beams.reset(batch); err != nil {
		return C.mr_step{}, err
	}
	if len(batch) > len(e.sequences) {
		return C.mr_step{}, fmt.Errorf("run step: %w: %d sequences, expected at most %d", ErrInvalid, len(batch), len(e.sequences))
	}
	for i := range batch {
		s := &batch[i]
		wanted := len(s.Tokens) - s.OutputsFrom
		if s.Region == nil || s.OutputsFrom < 0 || wanted < 0 {
			return C.mr_step{}, fmt.Errorf("run step: %w: sequence %d: %d tokens, outputs from %d", ErrInvalid, i, len(s.Tokens),
				s.OutputsFrom)
		}
		if s.Hidden {
			hidden += wanted
		} else if hidden > 0 && wanted > 0 {
			return C.mr_step{}, fmt.Errorf("run step: %w: sequence %d has logits after those with hidden states", ErrInvalid, i)
		}
		if rows+len(s.Tokens) > e.limits.MaxRows || outputs+wanted-hidden > e.limits.MaxOutputs || hidden > e.limits.MaxHidden {
			return C.mr_step{}, fmt.Errorf("run step: %w: over %d rows, %d outputs or %d hidden states",
				ErrInvalid, e.limits.MaxRows, e.limits.MaxOutputs, e.limits.MaxHidden)
		}
		e.sequences[i] = C.mr_sequence{
			region:    s.Region.handle,
			first_row: C.int32_t(rows),
			rows:      C.int32_t(len(s.Tokens)),
			position:  C.int32_t(s.Position),
			second:    C.int32_t(s.Second),
		}
		if s.Beams != nil {
			var err error
			if e.sequences[i].beams, err = e.beams.add(s); err != nil {
				return C.mr_step{}, fmt.Errorf("run step: %w: sequence %d: %w", ErrInvalid, i, err)
			}
		}
		copy(e.tokens[rows:], s.Tokens)
		for j := range wanted {
			e.outputs[outputs+j] = int32(rows + s.OutputsFrom + j)
		}
		rows += len(s.Tokens)
		outputs += wanted
	}
	return C.mr_step{
		tokens:      (*C.int32_t)(unsafe.SliceData(e.tokens)),
		sequences:   unsafe.SliceData(e.sequences),
		output_rows: (*C.int32_t)(unsafe.SliceData(e.outputs)),
		logits:      (*C.float)(unsafe.SliceData(e.logits)),
		rows:        C.int32_t(rows),
		n_sequences: C.int32_t(len(batch)),
		outputs:     C.int32_t(outputs),

		hidden_outputs: C.int32_t(hidden),
		hidden:         (*C.float)(unsafe.SliceData(e.hidden)),
	}, nil
}

// cSlice makes *s a zeroed slice of n values in C memory; false when there is
// no memory.
func cSlice[T any](s *[]T, n int) bool {
	var zero T
	p := C.calloc(C.size_t(max(n, 1)), C.size_t(unsafe.Sizeof(zero)))
	if p == nil {
		return false
	}
	*s = unsafe.Slice((*T)(p), n)
	return true
}

func cFree[T any](s *[]T) {
	if *s != nil {
		C.free(unsafe.Pointer(unsafe.SliceData(*s)))
		*s = nil
	}
}
