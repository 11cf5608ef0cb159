package family

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// ggufForm is how a family's GGUF files differ from its Hugging Face checkpoints.
type ggufForm struct {
	name        string            // general.architecture
	interleaved bool              // rows of q and k: llama.cpp turns the neighbors (2i, 2i+1) of a head
	parts       map[string]string // names of a layer's tensors that differ from Llama's, to those of Hugging Face
	keys        map[string]string // keys beside Llama's, without the architecture, to members of config.json
	spell       func(*fields)     // sets what has no key; nil: nothing
}

// ggufNames are the architectures of GGUF files that are read.
func ggufNames() []string {
	var names []string
	for _, f := range families() {
		if f.gguf != nil {
			names = append(names, f.gguf.name)
		}
	}
	return names
}

// ggufFamily returns the family of a file by its metadata, nil if it is not read, and general.architecture.
func ggufFamily(m weights.Metadata) (known *family, name string) {
	name, _ = m["general.architecture"].(string)
	return find(func(f *family) bool { return f.gguf != nil && f.gguf.name == name }), name
}

// loadGGUF reads the metadata of a GGUF file.
func loadGGUF(path string) (*Config, error) {
	g, err := weights.OpenGGUF(path, ggufLayout)
	if err != nil {
		return nil, err
	}
	defer g.Close() //nolint:errcheck // nothing was written
	f, err := ggufFields(path, g.Metadata, g)
	if err != nil {
		return nil, err
	}
	c, err := parseConfig(f)
	if err != nil {
		return nil, err
	}
	return c, ggufRope(g, c)
}

// LoadGGUFBegin is LoadConfig for a file that has the begin of a GGUF file, up to its data.
func LoadGGUFBegin(path string) (*Config, error) {
	g, err := weights.ReadGGUFBegin(path, ggufLayout)
	if err != nil {
		return nil, err
	}
	f, err := ggufFields(path, g.Metadata, g)
	if err != nil {
		return nil, err
	}
	return parseConfig(f)
}

// ggufFields spells the metadata as a config.json, so that the same ranges and
// defaults hold for both. Faults name the keys of the file. Keys: ggml's
// docs/gguf.md, and gguf-py/gguf/constants.py for the rest.
func ggufFields(path string, m weights.Metadata, tensors describer) (*fields, error) {
	f := &fields{file: path, members: map[string]json.RawMessage{}, alias: map[string]string{}}
	known, kind := ggufFamily(m)
	if known == nil {
		names := ggufNames()
		last := len(names) - 1
		f.fault("general.architecture", fmt.Sprintf("%.40q", kind), strings.Join(names[:last], ", ")+" or "+names[last])
		return nil, f.err
	}
	f.set("architectures", []string{known.class})
	rename := func(key, name string) {
		f.alias[name] = key
		if v, ok := m[key]; ok {
			f.set(name, v)
		}
	}
	keys := map[string]string{
		"embedding_length": "hidden_size", "block_count": "num_hidden_layers", "feed_forward_length": "intermediate_size",
		"attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
		"attention.key_length": "head_dim", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
		"context_length": "max_position_embeddings", "rope.freq_base": "rope_theta",
	}
	maps.Copy(keys, known.gguf.keys)
	for key, name := range keys {
		rename(kind+"."+key, name)
	}
	rename("tokenizer.ggml.bos_token_id", "bos_token_id")
	if !f.has("num_key_value_heads") { // llama.cpp: as many as heads
		f.members["num_key_value_heads"] = f.members["num_attention_heads"]
	}
	if !f.has("head_dim") {
		f.headDim(kind)
	}
	if ids := ggufEnds(m); len(ids) > 0 {
		f.set("eos_token_id", ids)
	}
	f.setTensors(tensors)
	f.setRopeScaling(m, kind)
	f.refuse(m, kind, keys)
	if known.gguf.spell != nil {
		known.gguf.spell(f)
	}
	return f, f.err
}

// set spells a value of the metadata in JSON.
func (f *fields) set(name string, v any) {
	raw, err := json.Marshal(v)
	if err != nil { // a number that JSON does not have
		f.fault(name, fmt.Sprint(v), "a finite number")
		return
	}
	f.members[name] = raw
}

// headDim is hidden / heads where the file does not say, as in llama.cpp.
func (f *fields) headDim(kind string) {
	hidden, heads := f.size(maxWidth, "hidden_size"), f.size(maxHeads, "num_attention_heads")
	if f.err == nil && hidden%heads != 0 {
		f.fault(kind+".attention.key_length", "nothing", fmt.Sprintf("a number, as %d is no multiple of %d heads", hidden, heads))
	}
	if f.err == nil {
		f.set("head_dim", hidden/heads)
	}
}

// ggufEnds are the tokens at which llama.cpp ends an answer.
func ggufEnds(m weights.Metadata) []int64 {
	var ids []int64
	for _, name := range []string{"eos", "eot", "eom"} {
		if id, ok := m["tokenizer.ggml."+name+"_token_id"].(int64); ok && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// setTensors takes from the tensors what GGUF has no keys for.
func (f *fields) setTensors(tensors describer) {
	has := func(name string) bool {
		_, ok := tensors.Describe(name)
		return ok
	}
	f.set("tie_word_embeddings", !has("lm_head.weight"))
	f.set("attention_bias", has("model.layers.0.self_attn.q_proj.bias"))
	f.set("mlp_bias", has("model.layers.0.mlp.gate_proj.bias"))
	if table, ok := tensors.Describe("model.embed_tokens.weight"); ok && len(table.Shape) == 2 {
		f.set("vocab_size", table.Shape[0])
	} else {
		f.fault("token_embd.weight", "no such matrix", "the token table")
	}
}

// setRopeScaling spells the scaling as llama.cpp reads it: a factor without a type is linear, and the factor of old files has another
// key. No factor, or 0, is 1.
func (f *fields) setRopeScaling(m weights.Metadata, kind string) {
	at := kind + ".rope.scaling."
	name, typed := m[at+"type"].(string)
	if !typed {
		name = "linear"
	}
	factorKey := at + "factor"
	if _, ok := m[factorKey]; !ok {
		factorKey = kind + ".rope.scale_linear"
	}
	factor, ok := m[factorKey]
	if !ok || factor == 0.0 {
		factor = 1.0
	}
	if name == "none" || name == "linear" && factor == 1.0 {
		return
	}
	if name == "longrope" { // the factors are tensors
		f.fault(at+"type", strconv.Quote(name), "none, linear or yarn")
	}
	scaling := map[string]any{"rope_type": name, "factor": factor}
	f.alias["rope_scaling.rope_type"], f.alias["rope_scaling.factor"] = at+"type", factorKey
	for key, to := range map[string]string{
		"original_context_length": "original_max_position_embeddings", "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow",
	} {
		f.alias["rope_scaling."+to] = at + key
		if v, ok := m[at+key]; ok {
			scaling[to] = v
		}
	}
	f.set("rope_scaling", scaling)
}

// refuse reports the features of the file that no op has. The family has those of the keys that it reads.
func (f *fields) refuse(m weights.Metadata, kind string, read map[string]string) {
	for _, key := range []string{"expert_count", "attention.sliding_window", "rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier"} {
		if read[key] != "" {
			continue
		}
		switch v := m[kind+"."+key]; v {
		case nil, int64(0), float64(0):
		case float64(1): // a factor that changes nothing
		default:
			f.fault(kind+"."+key, fmt.Sprint(v), "none")
		}
	}
	if dim, ok := m[kind+".rope.dimension_count"].(int64); ok && f.err == nil && dim != int64(f.integer(0, 0, maxHeadDim, "head_dim")) {
		f.fault(kind+".rope.dimension_count", fmt.Sprint(dim), "the size of a head: "+string(f.members["head_dim"]))
	}
	if value, ok := m[kind+".attention.value_length"].(int64); ok && f.err == nil && value != int64(f.integer(0, 0, maxHeadDim, "head_dim")) {
		f.fault(kind+".attention.value_length", fmt.Sprint(value), "the size of a head: "+string(f.members["head_dim"]))
	}
}

// ggufRope takes the divisors of the rotary frequencies (Llama 3.1's scaling)
// from the tensor in which llama.cpp's converter leaves them.
func ggufRope(g *weights.GGUF, c *Config) error {
	const name = "rope_freqs.weight"
	t, ok := g.Tensor(name)
	if !ok {
		return nil
	}
	if t.DType != weights.F32 || !slices.Equal(t.Shape, []int64{int64(c.HeadDim / 2)}) || c.Rope.Type != "default" {
		return &weights.FormatError{File: g.Path, Name: name, Found: fmt.Sprintf("%s %v with rope scaling %s", t.Type, t.Shape, c.Rope.Type),
			Expected: fmt.Sprintf("F32 [%d] without another scaling", c.HeadDim/2)}
	}
	c.Rope.Divisors = make([]float32, c.HeadDim/2)
	for i := range c.Rope.Divisors {
		v := math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
		if !(v >= minFactor && v <= maxFactor) {
			return &weights.FormatError{File: g.Path, Name: name, Found: fmt.Sprint(v), Expected: fmt.Sprintf("divisors of %g to %g", minFactor, float64(maxFactor))}
		}
		c.Rope.Divisors[i] = v
	}
	return nil
}
