// Package family reads the configuration of a checkpoint and builds its op program. Each family of
// models has a file.
//
// It must not know backends, devices or sequences.
package family

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// Upper bounds of what a configuration may ask for: far above any model, low
// enough that a product of two fits an int64 and a table fits memory.
const (
	maxVocab     = 1 << 22
	maxWidth     = 1 << 18 // hidden, intermediate
	maxLayers    = 1 << 10
	maxHeads     = 1 << 10
	maxHeadDim   = 1 << 10
	maxPositions = 1 << 24
	maxKernel    = 16 // of a convolution over tokens
	maxLabels    = 1 << 10
)

// Config is what a checkpoint's config.json and generation_config.json say,
// in one spelling for all families. Fields that a family does not have are
// zero. What only one has is in its plan.
type Config struct {
	File         string // path of config.json or of the GGUF file, for messages
	Architecture string // "LlamaForCausalLM"
	DType        string // as the configuration has it: "bfloat16"

	Vocab        int
	Hidden       int
	Layers       int
	Heads        int
	KVHeads      int
	HeadDim      int
	Intermediate int
	MaxPositions int    // longest sequence
	Shortened    string // why it is shorter than the model's; "": it is not
	Eps          float32
	Activation   model.Activation

	TieEmbeddings    bool
	QKVBias, OutBias bool
	MLPBias          bool
	QKNorm           bool  // RMS norm over each head of q and k
	Windows          []int // sliding window per layer, 0: none; nil: no layer has one
	Rope             Rope
	NoHead           bool // the class has no output layer: its hidden states are for embeddings

	Encoder    bool       // there is no generation: rows see later ones too, or a decoder has a head for classes
	Classifier Classifier // of an encoder
	Pooling    Pooling    // of its vectors

	Generation Generation

	plan plan // builds the program
}

// Path is the checkpoint's: a directory or a GGUF file.
func (c *Config) Path() string {
	if weights.IsGGUF(c.File) {
		return c.File
	}
	return filepath.Dir(c.File)
}

// Generation is what a checkpoint says about generating with it. The pointers
// are nil where it says nothing.
type Generation struct {
	BOS *int32
	EOS []int32

	DoSample          *bool
	Temperature       *float32
	TopK              *int
	TopP              *float32
	MinP              *float32
	RepetitionPenalty *float32
}

// LoadConfig reads config.json and, when present, generation_config.json of a
// model directory, or the metadata of a GGUF file. Faults of the files are
// *weights.FormatError.
func LoadConfig(dir string) (*Config, error) {
	if weights.IsGGUF(dir) {
		return loadGGUF(dir)
	}
	path := configPath(dir)
	f, err := readFields(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &weights.FormatError{File: dir, Found: "no config.json" + weights.OtherFiles(dir),
			Expected: "a Hugging Face model directory"}
	}
	if err != nil {
		return nil, err
	}
	c, err := parseConfig(f)
	if err != nil {
		return nil, err
	}
	if err := c.readPooling(dir); err != nil {
		return nil, err
	}
	g, err := readFields(filepath.Join(dir, "generation_config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	c.Generation = parseGeneration(g, c.Generation)
	return c, g.err
}

// ParseConfig reads the text of a config.json; faults name the file.
func ParseConfig(file string, text []byte) (*Config, error) {
	f, err := parseFields(file, text)
	if err != nil {
		return nil, err
	}
	return parseConfig(f)
}

func parseConfig(f *fields) (*Config, error) {
	c := &Config{File: f.file}
	family := c.familyOf(f)
	if f.err != nil {
		return nil, f.err
	}
	if _, raw := f.get("quantization_config"); raw != nil {
		if _, err := weights.ParseQuantization(f.file, raw); err != nil {
			return nil, err
		}
	}
	c.Architecture = family.class
	if family.spell != nil {
		family.spell(f)
	}
	c.DType = f.text("", "dtype", "torch_dtype")
	c.Vocab = f.size(maxVocab, "vocab_size")
	c.plan = family.config(f, c)
	if !c.Encoder { // classes are of a whole text here too, and nothing is generated
		c.classes(f)
		c.Encoder = len(c.Classifier.Labels) > 0
	}
	c.Pooling = defaultPooling(c.Encoder)
	c.Generation = parseGeneration(f, Generation{})
	if f.err != nil {
		return nil, f.err
	}
	return c, nil
}

// familyOf returns the family of a configuration: by its architectures, or else by its model_type. A class without an output layer, such
// as LlamaModel of embedding models, counts as the one with it.
func (c *Config) familyOf(f *fields) *family {
	names, kind := f.texts("architectures"), f.text("", "model_type")
	if len(names) == 0 {
		if known := find(func(x *family) bool { return strings.EqualFold(x.kind, kind) }); known != nil {
			return known
		}
	}
	for _, name := range names {
		if name == "" {
			continue
		}
		if known := find(func(x *family) bool { return x.saved == name && x.kind == kind }); known != nil {
			return known
		}
		if known := find(func(x *family) bool { return x.class == name }); known != nil {
			return known
		}
		text := f.object("text_config").text("", "model_type")
		if known := find(func(x *family) bool { return slices.Contains(x.also, name) && x.kind == text }); known != nil {
			return known // several families have the class
		}
		if known := find(func(x *family) bool { return slices.Contains(x.also, name) }); known != nil {
			return known
		}
		if missing, ok := wrapped()[name]; ok {
			return textFamily(f, name, missing)
		}
		if known := find(func(x *family) bool { return x.bare == name }); known != nil {
			c.NoHead = true
			return known
		}
	}
	f.fault("architectures", cmp.Or(strings.Join(names, ", "), "nothing"), served(names...))
	return nil
}

// parseGeneration reads the fields of generation over what is known already:
// generation_config.json goes before config.json.
func parseGeneration(f *fields, g Generation) Generation {
	if ids := f.ids("eos_token_id"); ids != nil {
		g.EOS = ids
	}
	if f.has("bos_token_id") {
		g.BOS = f.begin()
	}
	if f.has("do_sample") {
		v := f.flag(false, "do_sample")
		g.DoSample = &v
	}
	if f.has("top_k") {
		v := f.integer(0, -1, maxVocab, "top_k") // -1, as 0, is none
		g.TopK = &v
	}
	g.Temperature = f.optional(g.Temperature, 0, "temperature")
	g.TopP = f.optional(g.TopP, 0, "top_p")
	g.MinP = f.optional(g.MinP, 0, "min_p")
	g.RepetitionPenalty = f.optional(g.RepetitionPenalty, 0.01, "repetition_penalty") // a divisor
	return g
}

// begin is the token at which a text begins. Old checkpoints have -1 for none, some a list of one.
func (f *fields) begin() *int32 {
	_, raw := f.get("bos_token_id")
	if string(raw) == "-1" {
		return nil
	}
	ids := f.ids("bos_token_id")
	if len(ids) == 0 {
		return nil
	}
	return &ids[0]
}

// optional is a sampling parameter that is present, of low or more, or known.
func (f *fields) optional(known *float32, low float64, name string) *float32 {
	if !f.has(name) {
		return known
	}
	v := float32(f.number(low, low, 100, name))
	return &v
}

// plainHeads reads the head count of an architecture without GQA.
func (c *Config) plainHeads(f *fields, names ...string) {
	c.Heads = f.size(maxHeads, names...)
	c.KVHeads = c.Heads
	c.headDimFromHidden(f)
}

// groupedHeads reads the head counts and checks that they divide. kvMissing is
// the class's default number of KV heads, 0: as many as heads.
func (c *Config) groupedHeads(f *fields, kvMissing int) {
	c.Heads = f.size(maxHeads, "num_attention_heads")
	if kvMissing == 0 {
		kvMissing = c.Heads
	}
	c.KVHeads = f.integer(kvMissing, 1, maxHeads, "num_key_value_heads")
	if f.err == nil && c.Heads%c.KVHeads != 0 {
		f.fault("num_key_value_heads", fmt.Sprint(c.KVHeads),
			fmt.Sprintf("a divisor of the %d attention heads", c.Heads))
	}
}

// divides refuses a number that another one does not divide.
func (f *fields) divides(name string, n int, divisorName string, divisor int) {
	if f.err == nil && n%divisor != 0 {
		f.fault(name, fmt.Sprint(n), fmt.Sprintf("a multiple of %s, %d", divisorName, divisor))
	}
}

// shorten makes the longest sequence shorter, and says why.
func (c *Config) shorten(positions int, why string) {
	if positions < c.MaxPositions {
		c.MaxPositions, c.Shortened = positions, why
	}
}

// attentionBias reads whether q, k, v and the projection of attention's result have biases.
func (c *Config) attentionBias(f *fields, missing bool) {
	c.QKVBias = f.flag(missing, "attention_bias")
	c.OutBias = c.QKVBias
}

// headDimFromHidden sets head_dim = hidden / heads.
func (c *Config) headDimFromHidden(f *fields) {
	if f.err != nil {
		return
	}
	c.HeadDim = c.Hidden / c.Heads
	if c.Hidden%c.Heads != 0 || c.HeadDim > maxHeadDim {
		f.fault("hidden_size", fmt.Sprint(c.Hidden),
			fmt.Sprintf("a multiple of the %d attention heads, %d per head at most", c.Heads, maxHeadDim))
	}
}

// activation reads the name of an activation, as transformers' ACT2FN has them.
func (c *Config) activation(f *fields, missing string, names ...string) {
	name, _ := f.get(names...)
	switch s := f.text(missing, names...); s {
	case "silu", "swish":
		c.Activation = model.ActSiLU
	case "gelu":
		c.Activation = model.ActGELUErf
	case "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh":
		c.Activation = model.ActGELUTanh
	case "relu":
		c.Activation = model.ActReLU
	case "relu2", "relu_squared":
		c.Activation = model.ActReLU2
	default:
		f.fault(name, fmt.Sprintf("%.40q", s), "silu, gelu, gelu_new, relu or relu2")
	}
}
