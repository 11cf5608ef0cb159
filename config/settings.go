package config

import (
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/kvmgr"
)

// Device chooses what computes.
type Device struct {
	Backend    string // "cpu", "ref", "sycl", "cuda", "sim"
	DeviceName string // "auto"; of sycl "cpu", "gpu", "level_zero:0"; of cuda "cuda:0"
	ISA        string // "": the best of this machine
	DType      string // of products and KV cache: "auto", "f16", "bf16"
	Threads    int    // 0: every core that the process may use
	Weights    string // as model.ParseWeights reads it
	KVType     string // one of model.KVTypeNames
	KVEviction string // as model.ParseEviction reads it
	Packed     string // "auto", "off", or the directory of the packed weights' files

	TensorParallel int // ranks that share the model, each with a share of the threads; 0: 1
}

// Register adds the settings to a command's flags.
func (d *Device) Register(f *pflag.FlagSet) {
	f.StringVar(&d.Backend, "backend", "cpu",
		"what computes: cpu, ref (float32, slow), sycl (Intel GPUs), cuda (NVIDIA GPUs), or sim (a simulated device; serve and generate only)")
	f.StringVar(&d.DeviceName, "device", "auto",
		"device of the sycl or cuda backend: auto, gpu, cpu (sycl only), or one that doctor lists; or the simulated device: a name or a JSON file (docs/simulation.md)")
	f.StringVar(&d.ISA, "isa", "", "instruction set of the backend, one that doctor lists (default: the best)")
	f.StringVar(&d.DType, "dtype", "auto",
		"type of products, and of the KV cache where --kv-type is auto: auto (bf16; on sycl and cuda f16 unless the checkpoint is bf16), or f16 or bf16 on sycl and cuda")
	RegisterWeights(f, &d.Weights)
	RegisterKVType(f, &d.KVType)
	RegisterKVEviction(f, &d.KVEviction)
	f.StringVar(&d.Packed, "packed-weights", "auto",
		"where to keep packed weights for the next start: auto (beside the model, else in the user's cache), a directory, or off")
	f.IntVar(&d.Threads, "threads", 0, "compute threads (0: every core that this process may use)")
	f.IntVar(&d.TensorParallel, "tensor-parallel", 1,
		"parts of the device that share each layer of the model: NUMA nodes or equal shares of the CPU, tiles of an Intel GPU; not of --backend cuda and sim")
}

// Validate checks what does not depend on the machine.
func (d *Device) Validate() error {
	return errors.Join(
		oneOf("backend", d.Backend, "cpu", "ref", "sycl", "cuda", "sim"),
		oneOf("dtype", d.DType, "auto", "f16", "bf16"),
		weights(d.Weights),
		oneOf("kv-type", d.KVType, model.KVTypeNames()...),
		eviction(d.KVEviction),
		atLeast("threads", d.Threads, 0),
		atLeast("tensor-parallel", d.TensorParallel, 1),
		ranks(d.Backend, d.TensorParallel),
	)
}

func ranks(backend string, n int) error {
	if n > 1 && backend == "sim" {
		return Usagef("--tensor-parallel: found %d with --backend sim, expected 1", n)
	}
	return nil
}

// RegisterModel adds --model to a command's flags.
func RegisterModel(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "model", "",
		"directory of a Hugging Face model, a GGUF file, or the name of a downloaded model (default: the demo model)")
}

// Serve is the configuration of a server.
type Serve struct {
	Device

	Model           string // directory; "": the demo model
	ServedModelName string // "": the name of the model's directory or file
	ToolParser      string // "auto" or the name of a format, see package api/tools
	ParseSpecial    bool   // special tokens in the messages of chats are special

	Listen        string        // HTTP
	BodyLimit     Bytes         // of one HTTP request
	MetricsNames  string        // "millrace" or "vllm"
	PingInterval  time.Duration // of comments on a silent event stream
	NATSListen    string        // of the embedded server
	NATS          string        // "": the embedded server
	DataDir       string
	DataDirNamed  bool          // the user has chosen DataDir; else a server gets another one if a process holds it
	StreamResume  string        // "auto", "on", "off"
	StreamKeep    time.Duration // how long the log of a resumable stream is kept after its end
	BatchStore    Bytes         // of files and batches; 0: none
	ResponseStore Bytes         // of stored responses; 0: none is stored
	DrainDelay    time.Duration // between the readiness of 503 and the refusal of requests
	Grace         time.Duration // for running requests at the end
	StepTimeout   time.Duration // a step that takes longer hangs; 0: none does

	KVMemory       Bytes  // 0: measured at start
	KVShm          string // "auto", "off" or a directory; "": off
	KVDisk         string // directory; "": none
	KVDiskSize     Bytes  // of a process's file there
	KVSpill        string // directory; "": none
	KVSpillSize    Bytes  // of a process's file there
	Admission      string // AdmissionPredicted or AdmissionDeclared
	MaxBatchTokens int    // rows per step
	DraftRows      int    // rows up to which a decode step is filled with draft tokens
	DraftLayers    int    // first layers that make them; 0: they are looked up
	PrefillChunk   int    // prompt rows of a step that decodes too, 0: no bound
	MaxBatchSize   int    // sequences per step
	MaxWaiting     int    // sequences in the queue

	MaxQueueWait time.Duration // until a request's prompt is begun; 0: no bound

	WaitingServedRatio float64 // see sched.Config; 0: prompts do not wait

	Tokenizers   int
	Detokenizers int

	Roles Roles
	Security
	Tracing
}

// Register adds the settings to a command's flags.
func (s *Serve) Register(f *pflag.FlagSet) {
	s.Device.Register(f)
	RegisterModel(f, &s.Model)
	f.StringVar(&s.ServedModelName, "served-model-name", "",
		"name of the model in the API (default: OWNER/NAME as it was pulled, or the name of its directory or file)")
	f.StringVar(&s.ToolParser, "tool-parser", "auto",
		"how the model writes tool calls: auto (its chat template shows it), or a format of docs/api.md such as hermes; +think after it: the model reasons")
	f.BoolVar(&s.ParseSpecial, "parse-special", true,
		"whether special tokens that the messages of a chat have in their text become special tokens, as in vLLM and llama-server")

	f.StringVar(&s.Listen, "listen", "127.0.0.1:8080", "address of the HTTP server, HOST:PORT")
	s.BodyLimit = 8 << 20
	f.Var(&s.BodyLimit, "body-limit", "largest HTTP request body, such as 8MiB")
	f.StringVar(&s.MetricsNames, "metrics-names", "millrace",
		"names of the metrics: millrace, or vllm (also those of vLLM, for its dashboards and for the Gateway API inference extension)")
	f.DurationVar(&s.PingInterval, "ping-interval", time.Second,
		"time between pings on a stream without tokens; clients of resumable streams consider a gateway dead after three intervals")
	f.StringVar(&s.NATSListen, "nats-listen", "127.0.0.1:4222", "address of the embedded NATS server, HOST:PORT")
	f.StringVar(&s.NATS, "nats", "", "URL of a NATS server to join (default: none; a server is embedded)")
	f.StringVar(&s.DataDir, "data-dir", "data",
		"directory for data that outlives the process: JetStream and node keys; if unset and in use, a server gets data-PORT")
	f.StringVar(&s.StreamResume, "stream-resume", "auto",
		"streams that clients can resume at any gateway: auto (on request, where JetStream is available), on (unless the request declines), or off")
	f.DurationVar(&s.StreamKeep, "stream-keep", 30*time.Second, "how long a resumable stream can be read after its end")
	s.BatchStore, s.ResponseStore = 1<<30, 256<<20
	f.Var(&s.BatchStore, "batch-store",
		"disk that JetStream may use for files and batches of all tenants, such as 1GiB (0: no files and no batches)")
	f.Var(&s.ResponseStore, "response-store",
		"disk that JetStream may use for stored responses of all tenants, which are kept for 24 h (0: no response is stored)")
	f.DurationVar(&s.DrainDelay, "drain-delay", 300*time.Millisecond, "how long a stopping gateway keeps serving after readiness turns 503")
	f.DurationVar(&s.Grace, "grace", 30*time.Second, "how long running requests may continue after SIGTERM or Ctrl-C")

	f.DurationVar(&s.StepTimeout, "step-timeout", 10*time.Minute,
		"longest step; after it every request fails and the process exits with 1 (0: no limit)")

	s.RegisterBatch(f)
	f.StringVar(&s.KVShm, "kv-shm", "auto",
		"directory on tmpfs where the KV cache outlives a worker, for others of its host to continue with; auto (/dev/shm/millrace-UID with --nats) or off")
	f.StringVar(&s.KVDisk, "kv-disk", "",
		"directory for keys and values that outlive the process, see --kv-disk-size (default: they are not stored)")
	s.KVDiskSize = 10 << 30
	f.Var(&s.KVDiskSize, "kv-disk-size", "largest file that a process has in the directory of --kv-disk, such as 10GiB")
	f.StringVar(&s.KVSpill, "kv-spill", "",
		"directory for keys and values of requests that pause for lack of KV memory, see --kv-spill-size (default: they stay in memory)")
	s.KVSpillSize = 4 << 30
	f.Var(&s.KVSpillSize, "kv-spill-size", "room that a process sets aside at start in the directory of --kv-spill, such as 4GiB")
	f.StringVar(&s.Admission, "admission", AdmissionPredicted,
		"KV memory of a request when it begins: predicted (for an answer of the expected length, which may grow) or declared (for the longest answer)")
	f.IntVar(&s.DraftRows, "draft-rows", DraftRows,
		"rows up to which a decode step is filled with draft tokens, which never change an answer (0: no draft tokens)")
	f.IntVar(&s.DraftLayers, "draft-layers", 0,
		"first layers of the model that make the draft tokens, for checkpoints trained to exit early (0: draft tokens are looked up in the text)")

	f.IntVar(&s.Tokenizers, "tokenizers", 2, "actors of the tokenizer pool")
	f.IntVar(&s.Detokenizers, "detokenizers", 2, "actors of the detokenizer pool")
	s.Roles.Register(f)
	s.Security.Register(f)
	s.Tracing.Register(f)
}

// Values of --admission.
const (
	AdmissionPredicted = "predicted"
	AdmissionDeclared  = "declared"
)

// DraftRows is the default of --draft-rows: on a CPU this number of rows takes hardly longer than one.
const DraftRows = 8

// RegisterBatch adds the settings of steps, queue and KV cache to a command's flags.
func (s *Serve) RegisterBatch(f *pflag.FlagSet) {
	f.Var(&s.KVMemory, "kv-memory",
		"memory of the KV cache, such as 2GiB, committed at start (0: for --max-batch-size sequences, at most a quarter of the free memory, as it is used)")
	f.IntVar(&s.MaxBatchTokens, "max-batch-tokens", 512, "tokens per step: decode rows and prompt chunks together")
	f.IntVar(&s.PrefillChunk, "prefill-chunk", 256, "prompt tokens of a step that also decodes (0: no limit)")
	f.Float64Var(&s.WaitingServedRatio, "waiting-served-ratio", 0,
		"share of the decoding sequences that waiting prompts must reach before prefill, for at most 16 steps (0: prompts never wait)")
	f.IntVar(&s.MaxBatchSize, "max-batch-size", 64, "sequences per step")
	f.IntVar(&s.MaxWaiting, "max-waiting", 512, "sequences that may wait for admission; a request beyond them gets 429")
	f.DurationVar(&s.MaxQueueWait, "max-queue-wait", 10*time.Second,
		"longest expected wait for prefill once --max-batch-size requests run; a request that would wait longer gets 429 (0: no limit)")
}

// Validate checks what does not depend on the machine or the model. Several
// faults are one error.
func (s *Serve) Validate() error {
	return errors.Join(
		s.Device.Validate(),
		toolParser(s.ToolParser),
		address("listen", s.Listen),
		address("nats-listen", s.NATSListen),
		s.validate(s.embeddedNATS()),
		s.gateway(),
		s.ValidateBatch(),
		atLeast("tokenizers", s.Tokenizers, 1),
		atLeast("detokenizers", s.Detokenizers, 1),
		atLeast("body-limit", s.BodyLimit, 1),
		atLeast("kv-disk-size", s.KVDiskSize, 1<<20),
		atLeast("kv-spill-size", s.KVSpillSize, 1<<20),
		s.spill(),
		s.lossy(),
		oneOf("admission", s.Admission, AdmissionPredicted, AdmissionDeclared),
		oneOf("metrics-names", s.MetricsNames, "millrace", "vllm"),
		oneOf("stream-resume", s.StreamResume, "auto", "on", "off"),
		atLeast("stream-keep", s.StreamKeep, time.Second),
		storeSize("batch-store", s.BatchStore),
		storeSize("response-store", s.ResponseStore),
		atLeast("drain-delay", s.DrainDelay, 0),
		atLeast("grace", s.Grace, 0),
		atLeast("step-timeout", s.StepTimeout, 0),
		atLeast("draft-rows", s.DraftRows, 0),
		atLeast("draft-layers", s.DraftLayers, 0),
		atLeast("ping-interval", s.PingInterval, time.Millisecond),
		errors.Join(s.Roles.validate()...),
		s.Tracing.Validate(),
	)
}

// LocalOnly says whether the HTTP server is there for the processes of this machine alone.
func (s *Serve) LocalOnly() bool { return s.Local() && loopback(s.Listen) }

// storeSize checks the size of a store: 0 or enough for a few requests.
func storeSize(flag string, found Bytes) error {
	const least = 1 << 20
	if found == 0 {
		return nil
	}
	return atLeast(flag, found, least)
}

// spill checks that there can be something to spill.
func (s *Serve) spill() error {
	if s.KVSpill != "" && s.Admission == AdmissionDeclared {
		return Usagef("--kv-spill: found with --admission %s, which never pauses a request; expected --admission %s", s.Admission,
			AdmissionPredicted)
	}
	return nil
}

// KVUses returns what may be done with keys and values, and the flag, with its value, that says so. A wrong value, which Validate refuses,
// is as none.
func (d *Device) KVUses() (uses kvmgr.Uses, cause string) {
	kv, _ := model.ParseKVType(d.KVType)
	eviction, _ := model.ParseEviction(d.KVEviction)
	if eviction.None() {
		return model.KVUses(kv, eviction), "--kv-type " + d.KVType
	}
	return model.KVUses(kv, eviction), "--kv-eviction " + d.KVEviction
}

// lossy refuses settings that copy keys and values where these are lossy.
func (s *Serve) lossy() error {
	uses, cause := s.KVUses()
	if uses.Copies {
		return nil
	}
	var copies string
	roles := s.Roles.List()
	switch {
	case s.KVSpill != "":
		copies = "--kv-spill"
	case s.KVDisk != "":
		copies = "--kv-disk"
	case slices.Contains(roles, cluster.Prefill) || slices.Contains(roles, cluster.Decode):
		copies = "--roles prefill or decode"
	default:
		return nil
	}
	return Usagef("found %s with %s, which copies keys and values; expected one of the two", cause, copies)
}

// gateway checks what concerns the gateway's role only.
func (s *Serve) gateway() error {
	if !s.Roles.Has(cluster.Gateway) {
		return nil
	}
	return s.publicHTTP(s.Listen)
}

// ValidateBatch checks the settings of RegisterBatch.
func (s *Serve) ValidateBatch() error {
	return errors.Join(
		atLeast("max-batch-tokens", s.MaxBatchTokens, 1),
		atLeast("prefill-chunk", s.PrefillChunk, 0),
		atLeast("max-batch-size", s.MaxBatchSize, 1),
		atLeast("max-waiting", s.MaxWaiting, 0),
		atLeast("max-queue-wait", s.MaxQueueWait, 0),
	)
}

// embeddedNATS is the address of the embedded NATS server, "" when another one
// is joined.
func (s *Serve) embeddedNATS() string {
	if s.NATS != "" {
		return ""
	}
	return s.NATSListen
}

func toolParser(found string) error {
	if _, err := (tools.Format{}).Override(found); err != nil {
		return Usagef("--tool-parser: %v, or auto", err)
	}
	return nil
}

func atLeast[T int | float64 | Bytes | time.Duration](flag string, found, least T) error {
	if found >= least { // NaN is not
		return nil
	}
	return Usagef("--%s: found %v, expected at least %v", flag, found, least)
}

func oneOf(flag, found string, expected ...string) error {
	if !slices.Contains(expected, found) {
		return Usagef("--%s: found %q, expected %s", flag, found, strings.Join(expected, " or "))
	}
	return nil
}

func address(flag, found string) error {
	_, port, err := net.SplitHostPort(found)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return Usagef("--%s: found %q, expected HOST:PORT", flag, found)
	}
	return nil
}
