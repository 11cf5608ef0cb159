package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/actors/node"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics"
)

// engine is a model with the pipeline that serves it.
type engine struct {
	*node.Node
	modelID string
	model   *openModel
	metrics *metrics.Metrics
	// vllmNames gives metrics vLLM's names, too.
	vllmNames bool
}

func deviceOptions(d config.Device) device.Options {
	return device.Options{Backend: d.Backend, Device: d.DeviceName, Threads: d.Threads, ISA: d.ISA, DType: d.DType, Ranks: d.TensorParallel}
}

// modelOptions are those of a model on a device, without the sizes of its steps.
func modelOptions(dir string, d config.Device) (compute.Options, error) {
	w, weightsErr := model.ParseWeights(d.Weights)
	kv, kvErr := model.ParseKVType(d.KVType)
	eviction, evictionErr := model.ParseEviction(d.KVEviction)
	o := compute.Options{Dir: dir, Device: deviceOptions(d), Weights: w, KV: kv, Eviction: eviction}
	switch d.Packed {
	case "off":
		o.NoPacked = true
	case "", "auto":
	default:
		o.PackedDir = d.Packed
	}
	return o, errors.Join(weightsErr, kvErr, evictionErr)
}

// storePacked writes the packed weights for the next start, until ctx ends. That it cannot
// is worth a line, and no more.
func (e *engine) storePacked(ctx context.Context, log zerolog.Logger) {
	m, ok := e.model.Runner.(*compute.Model)
	if !ok { // a simulated device
		return
	}
	begin := time.Now()
	path, err := m.StorePacked(ctx)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		log.Warn().Err(err).Msg("the packed weights were not kept: the next start packs them again (--packed-weights names another directory, or off)")
	case path != "":
		log.Info().Str("file", path).Dur("took", time.Since(begin)).Msg("packed weights kept: the next start maps them")
	}
}

// loadingModel is what the roles of a process need of the model, while it is loaded.
type loadingModel struct {
	begin time.Time
	done  chan struct{}
	model *openModel // these are set then
	err   error
}

// beginLoading begins to load the model of s.
func beginLoading(s *config.Serve, log zerolog.Logger) *loadingModel {
	l := &loadingModel{begin: time.Now(), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		switch {
		case s.Roles.List() == nil || s.Roles.Computes():
			l.model, l.err = newModel(s, openPools(s, log), log)
		case s.Roles.NeedsModel():
			l.model, l.err = newTokenizer(s)
		default:
			l.model = &openModel{}
		}
	}()
	return l
}

// wait returns the model, which the caller closes, even after an error.
func (l *loadingModel) wait() (*openModel, error) {
	<-l.done
	return l.model, l.err
}

// abandon closes the model once it is there, without a wait.
func (l *loadingModel) abandon() {
	go func() {
		<-l.done
		l.model.close()
	}()
}

// openEngine waits for what the roles of s need of the model and starts a pipeline for
// it: one among others where there are connections. generate has no roles: all.
func openEngine(s *config.Serve, loading *loadingModel, to *links, tracer trace.Tracer, log zerolog.Logger) (*engine, error) {
	e := &engine{modelID: s.ServedModelName, vllmNames: s.MetricsNames == "vllm"}
	if e.modelID == "" && s.Model != "" {
		e.modelID = fileName(s.Model)
	}
	if err := e.open(s, loading, to, tracer, log); err != nil {
		e.close()
		return nil, err
	}
	if m := e.model; m.Runner != nil {
		log.Info().Str("model", e.modelID).Str("architecture", m.program.Architecture).
			Str("backend", m.device.Backend).Str("isa", m.device.ISA).Int("threads", m.device.Threads).
			Str("numerics", m.numerics.Digest()).Str("class", m.numerics.Class).Str("text", m.tokenizer.Digest()).
			Uint64("weight_bytes", m.costs.WeightBytes).Uint64("activation_bytes", m.costs.ActivationBytes).
			Str("kv_type", m.costs.KVType).Int("kv_slabs", m.Slabs()).Uint64("kv_bytes", uint64(m.Slabs())*m.costs.SlabBytes).
			Uint64("kv_committed_bytes", m.committed()).
			Dur("took", time.Since(loading.begin)).Msg("model loaded")
		if m.device.Backend == "sycl" && m.device.OnCPU && s.DeviceName == "auto" {
			log.Warn().Str("device",
				m.device.Name).Msg("--backend sycl found no Intel GPU and computes on the CPU, where --backend cpu is faster: millrace doctor says what an Intel GPU lacks; --device cpu says that the CPU is meant")
		}
	}
	return e, nil
}

func (e *engine) open(s *config.Serve, loading *loadingModel, to *links, tracer trace.Tracer, log zerolog.Logger) (err error) {
	roles := s.Roles.List()
	if e.model, err = loading.wait(); err != nil {
		return err
	}
	m := e.model
	e.metrics = metrics.New(metrics.Build{Version: version, Commit: commit, Backend: m.device.Backend, ISA: m.device.ISA})
	c := node.Config{
		Roles: roles, ModelID: e.modelID, Tokenizer: m.tokenizer,
		Tokenizers: s.Tokenizers, Detokenizers: s.Detokenizers, MaxRequests: s.MaxBatchSize + s.MaxWaiting, MaxQueueWait: s.MaxQueueWait,
		GiveUpAfter: s.StepTimeout, Metrics: e.metrics, Tracer: tracer, Log: log,
		Cluster: node.Cluster{
			Beat: s.Roles.Heartbeat, Dead: s.Roles.NodeTimeout, FailoverTimeout: s.Roles.FailoverTimeout,
			HTTP: s.Listen, Version: version,
		},
	}
	if to != nil {
		c.Cluster.Conn, c.Cluster.Unheard = to.nodes, to.unheard
	}
	if m.tokenizer != nil {
		if !s.ParseSpecial {
			m.tokenizer.PlainMessages()
		}
		c.Text = m.tokenizer.Digest()
		if c.Format, err = tools.Detect(m.tokenizer.ToolTemplate()).Override(s.ToolParser); err != nil {
			return fmt.Errorf("--tool-parser: %w", err)
		}
	}
	if m.Runner != nil {
		if n := m.tokenizer.VocabSize(); n > m.Vocab() {
			log.Warn().Int("tokenizer", n).Int("model",
				m.Vocab()).Msg("the tokenizer has tokens that the model lacks: prompts with them are refused")
		}
		if err := m.tokenizer.NoText(); err != nil {
			log.Warn().Err(err).Msg("no texts: each request with one is refused")
		}
		if m.config.NoHead {
			log.Warn().Msg("the checkpoint has no output layer: it is for embeddings, and answers have no meaning")
		}
		if why := m.config.Shortened; why != "" {
			log.Warn().Int("tokens", m.program.MaxPositions).Str("why", why).Msg("sequences are shorter than the model's")
		}
		kept := m.program.WeightsText(m.weights)
		c.Model, c.Backend, c.Weights = m.Runner, m.device.Backend, kept
		c.Facts = api.WeightFacts{
			ContextLength: m.program.MaxPositions, Shortened: m.config.Shortened, Sampling: recommended(m.config.Generation, log),
			Embedding: embedding(m.config), Description: m.describe(kept),
		}
		c.Pools = m.pools
		e.metrics.Cache(m.Slabs(), m.KV().SlabTokens)
		if onDevice, ok := m.Runner.(*compute.Model); ok {
			c.Pool, c.Pages, c.WholePool = onDevice.PoolFile, onDevice, s.KVMemory > 0
			c.Drafter = onDevice.Drafter()
		}
		c.Numerics, c.Class = m.numerics.Digest(), m.numerics.Class
		c.KVDisk = node.KVDisk{Dir: s.KVDisk, Size: int64(s.KVDiskSize)}
		c.KVSpill = node.KVDisk{Dir: s.KVSpill, Size: int64(s.KVSpillSize)}
		c.Sched = schedConfig(s, m.KV(), m.program.MaxPositions)
		if s.Backend == "sim" { // its texts repeat: every draft token would be right
			c.Sched.DraftRows = 0
		}
	}
	e.Node, err = node.New(c)
	return err
}

// embedding is what a model's files say of its vectors and classes.
func embedding(c *family.Config) api.Embedding {
	p, k := &c.Pooling, &c.Classifier
	e := api.Embedding{
		Pooling: api.Pooling(p.Mode), Normalize: p.Normalize, Named: p.Named, Problem: p.Problem, Prompts: p.Prompts, Default: p.Default,
		Encoder: c.Encoder, Classes: api.Classes{Labels: k.Labels, Classify: k.Classify, Score: k.Score},
	}
	switch {
	case len(k.Labels) > 0:
		e.Pooling = api.PoolClasses
	case c.Encoder:
		e.Pooling = api.PoolText
	}
	return e
}

// schedConfig configures the scheduler for sequences of at most longest tokens.
func schedConfig(s *config.Serve, kv kvmgr.Spec, longest int) sched.Config {
	return sched.Config{
		MaxBatchTokens: max(s.MaxBatchTokens, s.MaxBatchSize), ChunkTokens: s.PrefillChunk, MaxBatchSize: s.MaxBatchSize,
		MaxWaiting: s.MaxWaiting, DraftRows: min(s.DraftRows, s.MaxBatchTokens),
		WaitingServedRatio: s.WaitingServedRatio,
		Predict:            s.Admission == config.AdmissionPredicted,
		MaxSequenceTokens:  longest,
		KV:                 kv, LeaseAheadTokens: 2 * kv.SlabTokens,
	}
}

// shutdown lets running requests finish within grace.
func (e *engine) shutdown(grace time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err := e.Close(ctx)
	if err == nil { // else the device is still in a step: its memory must stay
		e.close()
	}
	return err
}

// close frees what open got; the pipeline has ended.
func (e *engine) close() {
	if e.model != nil {
		e.model.close()
	}
}
