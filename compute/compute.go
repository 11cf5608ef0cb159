package compute

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/numerics"
	"github.com/millrace/millrace/compute/packed"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/weights"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/kvmgr/kvfile"
)

// Options name the model and bound its memory.
type Options struct {
	Dir    string // Hugging Face model directory
	Device device.Options

	Weights      model.WeightPlan // how linear ops keep theirs
	KV           model.KVType     // how keys and values are kept
	OneGroup     bool             // as of model.Program
	Eviction     model.Eviction   // which keys and values a sequence keeps
	DraftLayers  int              // first layers that make draft tokens, see Model.Drafter; 0: none do
	DraftRows    int              // rows of a step of these
	Generates    bool             // an encoder is an ErrEncoder
	MaxRows      int              // rows per step
	MaxOutputs   int              // output rows per step
	MaxHidden    int              // rows per step whose hidden states are read, beside those; 0: none
	MaxSequences int              // sequences that a KV pool of measured size holds at most, at full length; 0: any number
	MaxTokens    int              // tokens of a sequence; 0: as many as the model has positions
	KVMemory     int64            // bytes of the KV pool; 0: measured, see PoolShare
	// KVStart is the bytes of a pool on the host whose slabs have memory from the start: CommitSlabs gives it to the others. 0: each has it
	// from its first use on.
	KVStart int64

	PackedDir string // of the packed weights' files; "": beside the model, or the user's cache
	NoPacked  bool   // neither read nor write them

	Pools *kvfile.Dir // where the KV pool is a file that outlives the process; nil: nowhere
	Warn  func(error) // receives the reason if it is none; set where Pools is
}

// ErrEncoder is the error for an encoder where tokens are to be generated.
var ErrEncoder = errors.New("the model is an encoder or a classifier, which generates nothing, expected a model that generates")

// Shares of the memory that is free once the weights are packed, which bound a pool of measured size. The rest is for other processes, the
// Go heap and the page cache.
const (
	PoolShare   = 0.25 // of the host's memory
	packedShare = 0.5  // for packed weights
)

// Model is an opened model: a Runner.
type Model struct {
	Config  *family.Config
	Program *model.Program
	Device  *device.Device

	options    Options
	checkpoint *weights.Checkpoint
	engine     *device.Engine
	early      *device.Engine // of the first layers; nil without DraftLayers
	packed     *packed.File   // nil: the engine packed the weights itself
	unloading  sync.RWMutex   // held by what reads the engine's weights beside Run
	loading    sync.RWMutex   // held by what uses the slabs' bytes beside Run
	layout     string         // see SlabLayout
	content    content
	numerics   numerics.Ingredients
	slabs      int
	slabBytes  int
	kv         kvmgr.Spec
	file       atomic.Pointer[kvfile.File] // see PoolFile
	memory     *slabFile                   // nil: the device commits slabs
	batch      []device.Rows
	beams      []*device.Beams // of the batch, kept for their memory
}

// Read reads a model's configuration and tensors and builds its program
// without a device.
func Read(dir string) (*family.Config, *model.Program, *weights.Checkpoint, error) {
	cfg, err := family.LoadConfig(dir)
	if err != nil {
		return nil, nil, nil, err
	}
	w, err := family.OpenWeights(cfg)
	if err != nil {
		return nil, nil, nil, err
	}
	p, err := family.Build(cfg, w)
	if err != nil {
		return nil, nil, nil, errors.Join(err, w.Close())
	}
	return cfg, p, w, nil
}

// ReadProgram builds a model's program for counting: with the tensors of its
// checkpoint, or, where the directory has none, of the configuration alone.
func ReadProgram(dir string) (*model.Program, error) {
	if weights.Exist(dir) {
		_, p, w, err := Read(dir)
		if err != nil {
			return nil, err
		}
		return p, w.Close()
	}
	cfg, err := family.LoadConfig(dir)
	if err != nil {
		return nil, err
	}
	return family.Build(cfg, nil)
}

// Open opens a model: it packs the weights, commits the KV pool and runs the probe, see Numerics, in
// a step of the largest size, so that a lack of memory shows now. Mapped weights ran such a step when
// they were packed, so for them Open runs the probe alone.
func Open(o Options) (*Model, error) {
	m := &Model{options: o}
	if err := m.open(); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func (m *Model) open() (err error) {
	if m.Config, m.Program, m.checkpoint, err = Read(m.options.Dir); err != nil {
		return err
	}
	if m.options.Generates && !m.Program.Generates() {
		return fmt.Errorf("%w: found %s", ErrEncoder, m.Program.Architecture)
	}
	m.Program.KV, m.Program.OneGroup = m.options.KV, m.options.OneGroup
	if err := m.Program.SetEviction(m.options.Eviction); err != nil {
		return err
	}
	if o := &m.options; o.DraftLayers > 0 {
		if err := m.Program.SetEarly(o.DraftLayers); err != nil {
			return err
		}
		o.KVStart = cmp.Or(o.KVStart, math.MaxInt64) // two programs map the file of the pool: none of them commits its slabs
	}
	if m.content, err = m.hashContent(); err != nil {
		return err
	}
	return m.load()
}

// setWeights makes the program keep its weights as the options have it, as far as the device does.
func (m *Model) setWeights() error {
	info, err := m.Device.Info()
	if err != nil {
		return err
	}
	plan := m.options.Weights
	if !info.KeepsBlocks {
		plan = plan.WithoutBlocks()
	}
	return m.Program.SetWeights(plan)
}

// load opens the device and puts the model on it.
func (m *Model) load() (err error) {
	o := &m.options
	if m.Device, err = device.Open(o.Device); err != nil {
		return err
	}
	if err := m.setWeights(); err != nil {
		return err
	}
	if err := m.loadEngine(); err != nil {
		return err
	}
	if m.options.DraftLayers > 0 {
		if err := m.loadEarly(); err != nil {
			return err
		}
	}
	if err := m.checkpoint.Release(); err != nil {
		return err
	}
	if m.slabs == 0 { // else it was open before
		if m.slabs, err = m.poolSize(o); err != nil {
			return err
		}
		info := m.engine.Info()
		m.slabBytes, m.kv = int(info.SlabBytes), KV(m.Program, info, m.options.MaxRows, m.slabs)
		if m.layout, err = m.slabLayout(); err != nil {
			return err
		}
	}
	if err := m.reserveKV(); err != nil {
		return err
	}
	return m.withMemory(m.warmSlabs(), m.identify)
}

// warmSlabs bounds the leading slabs that identify uses.
func (m *Model) warmSlabs() int {
	prompt := numerics.Prompt(m.Program.Vocab, m.Program.MaxPositions)
	return min(m.slabs, probeSlabs*m.kv.Counts().Count()+m.engine.Slabs(max(m.options.MaxRows, len(prompt))))
}

// poolSize returns the number of slabs: those that KVMemory or else the free memory holds, and of a measured size at most
// as many as MaxSequences can use.
func (m *Model) poolSize(o *Options) (int, error) {
	slab := m.engine.Info().SlabBytes
	if o.KVMemory > 0 {
		return m.enough(kvmgr.SlabsIn(uint64(o.KVMemory), slab))
	}
	info, err := m.Device.Info()
	if err != nil {
		return 0, err
	}
	// Weights and activations are allocated by now: what is available is left.
	// Mapped weights are counted as available: they are pages of a file.
	available, taken, share := info.MemoryAvailable+m.unowned(), m.pageCache(), PoolShare
	if !info.OnCPU {
		used := m.engine.Info().WeightBytes + m.engine.Info().ActivationBytes
		available, taken, share = leftOnDevice(info.MemoryAvailable, info.MemoryTotal, used), 0, 1
	}
	slabs, err := m.enough(kvmgr.SizePool(available, taken, 0, share, slab))
	if err != nil {
		return 0, err
	}
	return min(slabs, m.engine.Info().MaxSlabs, o.mostSlabs(m.engine, m.Program.MaxPositions)), nil
}

// enough returns an ErrNoMemory for a pool without the slabs of a sequence of one token.
func (m *Model) enough(slabs int, err error) (int, error) {
	if least := m.engine.Slabs(1); err == nil && slabs < least {
		return 0, fmt.Errorf("%w: room for %d slabs of %d bytes, expected at least the %d of a sequence of one token", kvmgr.ErrNoMemory,
			slabs,
			m.engine.Info().SlabBytes, least)
	}
	return slabs, err
}

// mostSlabs is the number of slabs that MaxSequences can use of a model with some positions.
func (o *Options) mostSlabs(e *device.Engine, longest int) int {
	if o.MaxSequences == 0 {
		return math.MaxInt
	}
	if o.MaxTokens > 0 {
		longest = min(longest, max(o.MaxTokens, probeSlabs*device.SlabTokens))
	}
	return o.MaxSequences * e.Slabs(longest)
}

// Reload opens the device again after it failed, with the weights from the
// checkpoint and a pool of the same size. Regions must be closed before. A device
// that computes other bits than before is an error: sequences would continue on it.
func (m *Model) Reload() error {
	m.loading.Lock()
	defer m.loading.Unlock()
	before := m.numerics
	m.unload()
	if err := m.load(); err != nil {
		return err
	}
	if m.numerics != before {
		return fmt.Errorf("reload: %w: found kernels %q with probe %.16s, expected %q with probe %.16s, as before: start the process again",
			device.ErrDevice, m.numerics.Class, m.numerics.Probe, before.Class, before.Probe)
	}
	return nil
}

func (m *Model) unload() {
	m.unloading.Lock()
	defer m.unloading.Unlock()
	if m.early != nil {
		m.early.Close()
		m.early = nil
	}
	if m.engine != nil {
		m.engine.Close()
		m.engine = nil
	}
	m.closePool()
	_ = m.closePacked() // nothing was written
	if m.Device != nil {
		m.Device.Close()
		m.Device = nil
	}
}

// Close frees everything. Regions must be closed before.
func (m *Model) Close() {
	m.loading.Lock() // a KV manager may copy slabs to the end
	defer m.loading.Unlock()
	m.unload()
	if m.checkpoint != nil {
		_ = m.checkpoint.Close() // nothing was written
	}
}

// Engine is the device's view of the loaded program.
func (m *Model) Engine() *device.Engine { return m.engine }

// Slabs is the number of physical slabs of the pool.
func (m *Model) Slabs() int { return m.slabs }

// Mappings is the number of slabs that all regions may hold together. The first layers map those of the first group again.
func (m *Model) Mappings() int {
	most := m.engine.Info().MaxSlabs
	if m.early != nil {
		groups := m.engine.Groups().Count()
		most = most / (groups + 1) * groups
	}
	return most
}

// KV is what a sequence keeps.
func (m *Model) KV() kvmgr.Spec { return m.kv }

// Vocab is the number of logits per output.
func (m *Model) Vocab() int { return m.Program.Vocab }

// HiddenWidth is the number of elements of a hidden state.
func (m *Model) HiddenWidth() int { return m.Program.HiddenWidth() }

// NewRegion reserves addresses for a sequence.
func (m *Model) NewRegion(tokens int) (Region, error) {
	r, err := m.engine.NewRegion(tokens)
	if err != nil {
		return nil, err // not a nil *device.Region in an interface
	}
	if m.early != nil {
		return m.newEarlyRegion(r, tokens)
	}
	return r, nil
}

// CopySlab copies the first tokens of a physical slab to another one.
func (m *Model) CopySlab(from, to int32, tokens int) error {
	return m.engine.CopySlab(from, to, tokens)
}

// Run runs one step. Regions are this model's.
func (m *Model) Run(batch []Rows) (Logits, error) {
	if err := m.setBatch(batch); err != nil {
		return nil, err
	}
	return m.engine.Run(m.batch)
}

// RunsAhead reports whether the device takes a step before it has done the one before.
func (m *Model) RunsAhead() bool { return m.engine.RunsAhead() }

// Start starts a step, as Ahead has it. Regions are this model's.
func (m *Model) Start(batch []Rows, draws []sample.Draw) error {
	if err := m.setBatch(batch); err != nil {
		return err
	}
	return m.engine.Start(m.batch, draws)
}

// Drawn waits for the oldest step of Start.
func (m *Model) Drawn(tokens []int32) error { return m.engine.Drawn(tokens) }

// RunTimed is Run op by op, with the time of each in the program's order.
func (m *Model) RunTimed(batch []Rows) ([]device.OpTime, error) {
	if err := m.setBatch(batch); err != nil {
		return nil, err
	}
	_, times, err := m.engine.RunTimed(m.batch)
	return times, err
}

func (m *Model) setBatch(batch []Rows) error {
	m.batch = m.batch[:0]
	beams := 0
	for _, r := range batch {
		region, err := deviceRegion(r.Region)
		if err != nil {
			return err
		}
		rows := device.Rows{Region: region, Tokens: r.Tokens, Position: r.Position, OutputsFrom: len(r.Tokens) - r.Outputs()}
		if m.Program.Encoder() { // a decoder has no types of tokens
			rows.Second = r.Second
		}
		if r.Hidden > 0 {
			rows.Hidden, rows.OutputsFrom = true, len(r.Tokens)-r.Hidden
		}
		if r.Beams != nil {
			if beams == len(m.beams) {
				m.beams = append(m.beams, &device.Beams{})
			}
			rows.Beams = m.beams[beams]
			beams++
			if err := deviceBeams(rows.Beams, r.Beams); err != nil {
				return err
			}
		}
		m.batch = append(m.batch, rows)
	}
	return nil
}

func deviceRegion(r Region) (*device.Region, error) {
	switch r := r.(type) {
	case *device.Region:
		return r, nil
	case *earlyRegion:
		return r.Region, nil
	}
	return nil, fmt.Errorf("run step: %w: a region of type %T", device.ErrInvalid, r)
}

func deviceBeams(to *device.Beams, from *Beams) error {
	to.Prompt, to.Index, to.Responses = from.Prompt, from.Index, to.Responses[:0]
	for _, r := range from.Responses {
		region, err := deviceRegion(r)
		if err != nil {
			return err
		}
		to.Responses = append(to.Responses, region)
	}
	return nil
}
