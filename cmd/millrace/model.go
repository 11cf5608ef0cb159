package main

import (
	"cmp"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/numerics"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/kvmgr/kvfile"
	"github.com/millrace/millrace/tokenizer"
)

// kvStart is the memory of the KV cache that is there when a server begins, in bytes: enough for the first requests.
const kvStart = 64 << 20

// openModel is a model on a device, or on a simulated one, with its tokenizer.
type openModel struct {
	compute.Runner
	config    *family.Config
	program   *model.Program
	weights   model.WeightPlan // how the program keeps its weights
	device    device.Info
	costs     device.ProgramInfo
	numerics  numerics.Ingredients
	tokenizer *tokenizer.Tokenizer
	pools     *kvfile.Dir // where workers of this host leave their KV pools; nil: nowhere
	closers   []func()
}

// newModel opens the model of s.Model. The caller closes it, even after an error.
func newModel(s *config.Serve, pools *kvfile.Dir, log zerolog.Logger) (*openModel, error) {
	m := &openModel{pools: pools}
	if pools != nil {
		m.closers = append(m.closers, pools.Close)
	}
	options, err := modelOptions(s.Model, s.Device)
	if err != nil {
		return m, err
	}
	m.weights = options.Weights
	options.MaxRows, options.MaxOutputs = max(s.MaxBatchTokens, s.MaxBatchSize), max(s.MaxBatchSize, s.DraftRows)
	options.MaxHidden = options.MaxRows
	options.DraftRows = min(s.DraftRows, s.MaxBatchTokens)
	if options.DraftRows > 0 {
		options.DraftLayers = s.DraftLayers
	}
	options.KVMemory = int64(s.KVMemory)
	options.OneGroup = s.KVDisk != "" // the disk has no slabs of other groups
	options.Pools, options.Warn = pools, warnPool(log)
	if s.Backend == "sim" || device.OnCaller(s.Backend) { // a pool of the host's memory
		options.MaxSequences, options.KVStart = s.MaxBatchSize, kvStart
	}
	if s.Backend == "sim" {
		return m, m.simulate(options, s)
	}
	defer watchLoading(&options, log)()
	return m, m.load(options)
}

// committed is the memory of the KV cache that is there when the model is open, in bytes.
func (m *openModel) committed() uint64 {
	slabs := m.Slabs()
	if onDevice, ok := m.Runner.(*compute.Model); ok && onDevice.CommittedSlabs() > 0 {
		slabs = onDevice.CommittedSlabs()
	}
	return uint64(slabs) * m.costs.SlabBytes
}

// newTokenizer opens the tokenizer of s.Model alone: no weights. The caller closes
// it, even after an error.
func newTokenizer(s *config.Serve) (*openModel, error) {
	m := &openModel{}
	var err error
	if m.tokenizer, err = tokenizer.LoadOrBare(s.Model, 0); err != nil {
		return m, err
	}
	m.closers = append(m.closers, func() { m.tokenizer.Close() }) //nolint:errcheck // nothing was written
	if m.tokenizer.VocabSize() > 0 {
		return m, nil
	}
	if m.program, err = compute.ReadProgram(s.Model); err != nil { // token ids only: the vocabulary is the model's
		return m, err
	}
	return m, m.loadTokenizer(s.Model)
}

// load puts the model on the device that the options name.
func (m *openModel) load(o compute.Options) error {
	var tokens sync.WaitGroup
	var tokenizerErr error
	tokens.Go(func() { m.tokenizer, tokenizerErr = tokenizer.LoadOrBare(o.Dir, 0) })
	opened, err := compute.Open(o)
	tokens.Wait()
	if tokenizerErr == nil {
		m.closers = append(m.closers, func() { m.tokenizer.Close() }) //nolint:errcheck // nothing was written
	}
	if err != nil {
		return err
	}
	m.closers = append(m.closers, opened.Close)
	m.Runner, m.config, m.program, m.costs = opened, opened.Config, opened.Program, opened.Engine().Info()
	m.numerics = opened.Numerics()
	if m.device, err = opened.Device.Info(); err != nil || tokenizerErr != nil {
		return cmp.Or(err, tokenizerErr)
	}
	if m.tokenizer.VocabSize() > 0 {
		return nil
	}
	return m.loadTokenizer(o.Dir) // a bare one, which needs the model's vocabulary
}

// simulate opens the model on the simulated device, from its configuration alone.
func (m *openModel) simulate(o compute.Options, s *config.Serve) (err error) {
	if m.program, err = compute.ReadProgram(o.Dir); err != nil {
		return err
	}
	if !m.program.Generates() {
		return config.Usagef("--backend sim: found an encoder or a classifier, %s, expected a model that generates", m.program.Architecture)
	}
	if err := m.program.SetWeights(o.Weights); err != nil {
		return config.Usagef("--weights: %w", err)
	}
	if o.DraftLayers > 0 {
		return config.Usagef("--draft-layers: found %d with --backend sim, expected 0", o.DraftLayers)
	}
	if !model.KVUses(model.KVAuto, o.Eviction).Rollback { // its tokens do not stay where they are
		return config.Usagef("--kv-eviction: found %s with --backend sim, expected another value", o.Eviction)
	}
	m.program.KV, m.program.OneGroup = o.KV, o.OneGroup
	if err := m.program.SetEviction(o.Eviction); err != nil {
		return err
	}
	if m.config, err = family.LoadConfig(o.Dir); err != nil {
		return err
	}
	if err := m.loadTokenizer(o.Dir); err != nil {
		return err
	}
	d, behavior, err := simDevice(s.DeviceName)
	if err != nil {
		return err
	}
	runner, err := sim.Open(sim.Options{
		Program: m.program, Device: d, Behavior: behavior,
		MaxRows: o.MaxRows, MaxOutputs: o.MaxOutputs, MaxHidden: o.MaxHidden, MaxSequences: o.MaxSequences, KVMemory: o.KVMemory,
		Text: textTokens(m.tokenizer, m.program.Vocab), End: m.tokenizer.EOS(),
	})
	if err != nil {
		return err
	}
	m.Runner, m.numerics = runner, runner.Numerics()
	m.closers = append(m.closers, runner.Close)
	m.device = device.Info{Backend: "sim", Name: d.String(), ISA: d.ID}
	m.costs = device.ProgramInfo{WeightBytes: sim.WeightBytes(m.program), KVType: o.KV.String(), SlabBytes: sim.SlabBytes(m.program),
		MaxSlabs: runner.Slabs()}
	return nil
}

// simDevice finds the simulated device that --device names.
func simDevice(name string) (sim.Device, sim.Behavior, error) {
	d, behavior, err := sim.Find(name)
	if err != nil {
		return d, behavior, config.Usagef("--device: %w", err)
	}
	return d, behavior, nil
}

func (m *openModel) loadTokenizer(dir string) (err error) {
	m.tokenizer, err = tokenizer.LoadOrBare(dir, m.program.Vocab)
	if err != nil {
		return err
	}
	m.closers = append(m.closers, func() { m.tokenizer.Close() }) //nolint:errcheck // nothing was written
	return nil
}

// textTokens are the tokens that are text by themselves: whole characters, and
// nothing special. Nil where there are none.
func textTokens(t *tokenizer.Tokenizer, vocab int) []int32 {
	var ids []int32
	for id := range int32(min(vocab, t.VocabSize())) {
		text := t.TokenBytes(id)
		if len(text) > 0 && utf8.Valid(text) && !t.IsSpecial(id) && !t.IsByte(id) && !slices.ContainsFunc(text, isControl) {
			ids = append(ids, id)
		}
	}
	return ids
}

func isControl(b byte) bool { return b < ' ' || b == 0x7F }

// close closes everything in the reverse order of opening.
func (m *openModel) close() {
	for _, f := range slices.Backward(m.closers) {
		f()
	}
	m.closers = nil
}
