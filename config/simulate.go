package config

import (
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/compute/model"
)

// Simulate is the configuration of a simulation: a fleet of servers, and what
// their clients do. Of Serve it has the model, the device, and the settings of
// RegisterBatch.
type Simulate struct {
	Serve

	Workers  int
	Prefill  []int   // of the workers; one simulation each
	Price    float64 // of a worker, per hour
	Requests int
	QPS      []float64 // of all workers together; one simulation each
	RampFrom float64
	Seed     uint64

	PromptMean, PromptSigma float64
	OutputMean, OutputSigma float64
	MaxTokens               int

	Admissions []string // one simulation each

	SLOTTFT, SLOTPOT time.Duration
	SLOQuantile      string
	FindQPS          bool

	PrefixTrace string // file; "": simulate a fleet
	CacheBlocks []int

	Curves    string // prefix of the pictures; "": none
	Calibrate string // file to write; "": none
	Compare   bool   // with the real engine
}

// Register adds the settings to a command's flags.
func (s *Simulate) Register(f *pflag.FlagSet) {
	RegisterModel(f, &s.Model)
	f.StringVar(&s.DeviceName, "device", "auto",
		"device of each worker: cpu (also auto), a name of the table of docs/simulation.md, or a JSON file")
	RegisterWeights(f, &s.Weights)
	RegisterKVType(f, &s.KVType)
	s.RegisterBatch(f)

	f.IntVar(&s.Workers, "workers", 1, "number of compute workers")
	f.IntSliceVar(&s.Prefill, "prefill-workers", []int{0},
		"number of --workers with the role prefill, the others with the role decode, one simulation per value (0: all with the role compute)")
	f.Float64Var(&s.Price, "price", 0, "price of a worker per hour, for the cost of tokens")
	f.IntVar(&s.Requests, "requests", 10000, "number of requests of a simulation")
	f.Float64SliceVar(&s.QPS, "qps", []float64{1},
		"requests per second of all workers together, Poisson arrivals; one simulation per value. With --find-qps the search starts at the first")
	f.Float64Var(&s.RampFrom, "ramp-from", 0, "requests per second at which the rate starts to grow to --qps (0: no ramp)")
	f.Uint64Var(&s.Seed, "seed", 1, "seed of arrivals, lengths and routing")
	f.Float64Var(&s.PromptMean, "prompt-mean", 161, "mean prompt length in tokens, log-normal")
	f.Float64Var(&s.PromptSigma, "prompt-sigma", 1, "standard deviation of the logarithm of prompt lengths (0: equal lengths)")
	f.Float64Var(&s.OutputMean, "output-mean", 338, "mean answer length in tokens, log-normal")
	f.Float64Var(&s.OutputSigma, "output-sigma", 0.8, "standard deviation of the logarithm of answer lengths (0: equal lengths)")
	f.IntVar(&s.MaxTokens, "max-tokens", 0,
		"largest number of tokens that a client allows, for which KV cache is reserved (0: the length of its answer)")
	f.StringSliceVar(&s.Admissions, "admission", []string{AdmissionPredicted},
		"KV memory of requests, one simulation per value: predicted, declared (as of serve), spill (predicted, as with --kv-spill), context (the longest) or recompute")
	s.KVSpillSize = 4 << 30
	f.Var(&s.KVSpillSize, "kv-spill-size", "room of each worker for paused requests with --admission spill, such as 4GiB")
	f.DurationVar(&s.SLOTTFT, "slo-ttft", 2*time.Second, "bound of the time to the first token (0: none)")
	f.DurationVar(&s.SLOTPOT, "slo-tpot", 50*time.Millisecond, "bound of the mean time per further token (0: none)")
	f.StringVar(&s.SLOQuantile, "slo-quantile", "p99", "quantile that --find-qps holds: p50, p95 or p99")
	f.StringVar(&s.PrefixTrace, "prefix-trace", "",
		"file of JSON lines with the hash_ids of each prompt's blocks: replays it through the prefix cache, and simulates no fleet")
	f.IntSliceVar(&s.CacheBlocks, "cache-blocks", []int{10000, 20000, 50000},
		"sizes of the prefix cache for --prefix-trace, in blocks of the trace")
	f.StringVar(&s.Curves, "curves", "",
		"prefix of pictures to write: PREFIX-ttft.svg, PREFIX-tpot.svg and PREFIX-gap.svg by rate, or with --prefix-trace PREFIX-hits.svg by size")
	f.StringVar(&s.Calibrate, "calibrate", "",
		"JSON file to write: measures the model on this processor and describes the device for --device")
	f.IntVar(&s.Threads, "threads", 0,
		"compute threads of --calibrate and --validate (0: every core, which leaves none for the rest of the pipeline)")
	f.BoolVar(&s.Compare, "validate", false, "run the workload on this machine's processor too, in real time, and compare")
	f.BoolVar(&s.FindQPS, "find-qps", false, "search the largest rate whose latencies hold the bounds, with no refusal")
}

// RegisterWeights adds --weights to a command's flags.
func RegisterWeights(f *pflag.FlagSet, weights *string) {
	f.StringVar(weights, "weights", "file", "type of the weights of linear ops: "+strings.Join(model.WeightNames(),
		", ")+"; +OP=TYPE sets one op, as in int8+attn.out=bf16")
}

func weights(found string) error {
	if _, err := model.ParseWeights(found); err != nil {
		return Usagef("--weights: %w", err)
	}
	return nil
}

func eviction(found string) error {
	if _, err := model.ParseEviction(found); err != nil {
		return Usagef("--kv-eviction: %w", err)
	}
	return nil
}

// RegisterKVEviction adds --kv-eviction to a command's flags.
func RegisterKVEviction(f *pflag.FlagSet, text *string) {
	f.StringVar(text, "kv-eviction", "none", "keys and values that long sequences give up: "+model.EvictionForms+" (it changes answers)")
}

// RegisterKVType adds --kv-type to a command's flags.
func RegisterKVType(f *pflag.FlagSet, name *string) {
	f.StringVar(name, "kv-type", "auto", "type of keys and values in the KV cache: "+strings.Join(model.KVTypeNames(),
		", ")+" (auto: the float type of --dtype)")
}

// Validate checks what does not depend on the model.
func (s *Simulate) Validate() error {
	if len(s.QPS) == 0 {
		return Usagef("--qps: found nothing, expected rates")
	}
	if err := s.validateAdmissions(); err != nil {
		return err
	}
	if len(s.CacheBlocks) == 0 {
		return Usagef("--cache-blocks: found nothing, expected sizes")
	}
	if s.Calibrate != "" && !strings.HasSuffix(s.Calibrate, ".json") {
		return Usagef("--calibrate: found %q, expected a file that ends in .json", s.Calibrate)
	}
	return errors.Join(
		weights(s.Weights),
		oneOf("slo-quantile", s.SLOQuantile, "p50", "p95", "p99"),
		s.ValidateBatch(),
		atLeast("threads", s.Threads, 0),
		atLeast("workers", s.Workers, 1),
		s.prefill(),
		atLeast("kv-spill-size", s.KVSpillSize, 1<<20),
		atLeast("requests", s.Requests, 1),
		atLeast("qps", slices.Min(s.QPS), math.SmallestNonzeroFloat64),
		atLeast("cache-blocks", slices.Min(s.CacheBlocks), 1),
		atLeast("ramp-from", s.RampFrom, 0),
		atLeast("price", s.Price, 0),
		atLeast("prompt-mean", s.PromptMean, 1),
		atLeast("prompt-sigma", s.PromptSigma, 0),
		atLeast("output-mean", s.OutputMean, 1),
		atLeast("output-sigma", s.OutputSigma, 0),
		atLeast("max-tokens", s.MaxTokens, 0),
		atLeast("slo-ttft", s.SLOTTFT, 0),
		atLeast("slo-tpot", s.SLOTPOT, 0),
	)
}

// prefill checks the divisions of the workers.
func (s *Simulate) prefill() error {
	if len(s.Prefill) == 0 {
		return Usagef("--prefill-workers: found nothing, expected numbers")
	}
	if len(s.Prefill) > 1 && s.FindQPS {
		return Usagef("--prefill-workers: found %d numbers, expected one with --find-qps", len(s.Prefill))
	}
	if most := slices.Max(s.Prefill); most >= max(s.Workers, 1) {
		return Usagef("--prefill-workers: found %d of --workers %d, expected at least one decode worker", most, s.Workers)
	}
	return atLeast("prefill-workers", slices.Min(s.Prefill), 0)
}

func (s *Simulate) validateAdmissions() error {
	if len(s.Admissions) == 0 {
		return Usagef("--admission: found nothing, expected names")
	}
	if len(s.Admissions) > 1 && (s.FindQPS || s.Curves != "") {
		return Usagef("--admission: found %d names, expected one with --find-qps and --curves", len(s.Admissions))
	}
	if s.Compare || s.Calibrate != "" { // they run a server
		return oneOf("admission", strings.Join(s.Admissions, ","), AdmissionPredicted, AdmissionDeclared)
	}
	return nil
}
