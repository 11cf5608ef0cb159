package family

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/compute/weights"
	"github.com/millrace/millrace/internal/nearest"
)

// ggufForm is how a family's GGUF files differ from its Hugging Face checkpoints.
type ggufForm struct {
	name        string                   // general.architecture
	also        []string                 // other names: of models with images, and of encoders
	only        func(keys ggufKeys) bool // which files of that name are the family's, where several have it; nil: all
	interleaved bool                     // rows of q and k in files of name: llama.cpp turns the neighbors (2i, 2i+1) of a head
	partial     bool                     // rope.dimension_count is the rotated part of a head
	decoder     string                   // before the names of all tensors but the head's; "": "model."
	layers      string                   // before the number of a layer; "": "layers."
	// names of tensors outside of layers that differ from Llama's, without .weight and .bias
	names map[string]string
	parts map[string]string // those of a layer's tensors; with .weight or .bias, the name there has none
	head  map[string]string // those of a head for classes, which have no prefix; nil: there is none
	// keys beside Llama's, without the architecture, to members of config.json; "": of no effect
	keys    map[string]string
	spell   func(*fields)                            // sets what has no key; nil: nothing
	unused  []string                                 // in the names of tensors that are not run
	tensors func(*Config, *weights.Checkpoint) error // replaces tensors; nil: none
}

// ggufKeys are the keys of an architecture.
type ggufKeys struct {
	weights.Metadata
	kind string
}

func (k ggufKeys) of(key string) any { return k.Metadata[k.kind+"."+key] }

// some says whether a key has a number that is not 0.
func (k ggufKeys) some(key string) bool {
	n, _ := k.of(key).(int64)
	return n > 0
}

// ggufNames are the architectures of GGUF files that are read.
func ggufNames() []string {
	var names []string
	for _, f := range families() {
		if f.gguf != nil && !slices.Contains(names, f.gguf.name) {
			names = append(names, f.gguf.name)
			names = append(names, f.gguf.also...)
		}
	}
	return names
}

// ggufFamily returns the family of a file by its metadata, nil if it is not read, and general.architecture.
func ggufFamily(m weights.Metadata) (known *family, name string) {
	name, _ = m["general.architecture"].(string)
	return find(func(f *family) bool {
		return f.gguf != nil && (f.gguf.name == name || slices.Contains(f.gguf.also, name)) &&
			(f.gguf.only == nil || f.gguf.only(ggufKeys{m, name}))
	}), name
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
	c.ggufPooling(g.Metadata)
	return c, errors.Join(c.ggufDense(g), ggufRope(g, c))
}

// ggufPooling is the pooling of a file that says it: enum llama_pooling_type of llama.h.
func (c *Config) ggufPooling(m weights.Metadata) {
	_, kind := ggufFamily(m)
	v, _ := (ggufKeys{m, kind}).of("pooling_type").(int64)
	if v == 4 && len(c.Classifier.Labels) > 0 { // that of the classes
		v = 0
	}
	switch v {
	case 0: // none
	case 1:
		c.Pooling.Mode = "mean"
	case 2:
		c.Pooling.Mode = "first"
	case 3:
		c.Pooling.Mode = "last"
	default:
		c.Pooling.Problem = fmt.Sprintf("the pooling %d of the file", v)
	}
	if c.Pooling.Mode == "first" && !c.Encoder {
		c.Pooling.Problem = "the first token's pooling of the file"
	}
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
	c, err := parseConfig(f)
	if err != nil {
		return nil, err
	}
	return c, c.ggufDense(g)
}

// ggufFields spells the metadata as a config.json, so that the same ranges and
// defaults hold for both. Faults name the keys of the file. Keys: ggml's
// docs/gguf.md, and gguf-py/gguf/constants.py for the rest.
func ggufFields(path string, m weights.Metadata, tensors describer) (*fields, error) {
	f := &fields{file: path, members: map[string]json.RawMessage{}, alias: map[string]string{}, tensors: tensors}
	known, kind := ggufFamily(m)
	if known == nil {
		f.fault("general.architecture", fmt.Sprintf("%.40q", kind), "a GGUF architecture of docs/models.md, where the nearest are "+
			strings.Join(nearest.Names(kind, ggufNames(), 3), ", "))
		return nil, f.err
	}
	f.form, f.kind = known.gguf, kind
	f.set("architectures", []string{known.class})
	rename := func(key, name string) {
		f.alias[name] = key
		v, ok := m[key]
		if list, isList := v.(weights.List); isList && list.Len() > maxList {
			f.fault(key, fmt.Sprintf("a list of %d", list.Len()), fmt.Sprintf("%d at most", maxList))
		} else if ok {
			f.set(name, spelled(v))
		}
	}
	keys := map[string]string{
		"embedding_length": "hidden_size", "block_count": "num_hidden_layers", "feed_forward_length": "intermediate_size",
		"attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
		"attention.key_length": "head_dim", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
		"context_length": "max_position_embeddings", "rope.freq_base": "rope_theta", "attention.causal": "is_causal",
		"nextn_predict_layers": "num_nextn_predict_layers",
	}
	maps.Copy(keys, known.gguf.keys)
	for key, name := range keys {
		if name == "" {
			continue
		}
		if _, ok := m[key]; !ok { // a few have no architecture before them
			key = kind + "." + key
		}
		rename(key, name)
	}
	rename("tokenizer.ggml.bos_token_id", "bos_token_id")
	f.withoutNext()
	if _, raw := f.get("sliding_window"); string(raw) == "0" { // as null
		f.members["sliding_window"] = json.RawMessage("null")
	}
	if !f.has("num_key_value_heads") { // llama.cpp: as many as heads
		f.members["num_key_value_heads"] = f.members["num_attention_heads"]
	}
	if !f.has("head_dim") && keys["attention.head_count"] != "" && keys["attention.key_length"] == "head_dim" {
		f.headDim(kind)
	}
	if ids := ggufEnds(m); len(ids) > 0 {
		f.set("eos_token_id", ids)
	}
	f.setTensors()
	f.setClasses(known, ggufKeys{m, kind})
	f.setRopeScaling(m, kind)
	f.refuse(ggufKeys{m, kind}, keys, known.gguf.partial)
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

// maxList is the length of a list at most. Those of a configuration have an entry for each layer.
const maxList = 1 << 12

// spelled is a value of the metadata as a configuration has it: a number of 32 bits, as the converter writes them, has its shortest text,
// which is mostly the one that it was read from. Infinite numbers of a list, which JSON does not have, become their names.
func spelled(v any) any {
	if x, ok := v.(float64); ok && float64(float32(x)) == x && !math.IsInf(x, 0) {
		return json.Number(strconv.FormatFloat(x, 'g', -1, 32))
	}
	list, ok := v.(weights.List)
	if !ok {
		return v
	}
	values := list.Values()
	for i, x := range values {
		if x, ok := x.(float64); ok && math.IsInf(x, 0) {
			values[i] = fmt.Sprint(x)
		}
	}
	return values
}

// describe is a tensor of the file by the name that it has there; false if there is none.
func (f *fields) describe(name string) (weights.Tensor, bool) {
	return f.tensors.Describe(f.form.huggingFaceName(name))
}

// inLayers says whether any layer has a tensor.
func (f *fields) inLayers(part string) bool {
	for i := range f.integer(0, 1, maxLayers, "num_hidden_layers") {
		if _, ok := f.describe(fmt.Sprintf("blk.%d.%s", i, part)); ok {
			return true
		}
	}
	return false
}

// setTensors takes from the tensors what GGUF has no keys for.
func (f *fields) setTensors() {
	_, head := f.describe("output.weight")
	f.set("tie_word_embeddings", !head)
	f.set("attention_bias", f.inLayers("attn_q.bias"))
	f.set("mlp_bias", f.inLayers("ffn_up.bias"))
	if table, ok := f.describe("token_embd.weight"); ok && len(table.Shape) == 2 {
		f.set("vocab_size", table.Shape[0])
	} else {
		f.fault("token_embd.weight", "no such matrix", "the token table")
	}
}

// setClasses says that there is a head for classes, where the file has one, and their labels.
func (f *fields) setClasses(known *family, keys ggufKeys) {
	out, ok := f.describe("cls.output.weight")
	if f.form.head == nil || !ok || len(out.Shape) != 2 {
		return
	}
	if _, ok := f.describe("cls.weight"); !ok { // llama.cpp's converter leaves it out of BERT's
		f.fault("cls.weight", "no such tensor", "the layer before cls.output")
	}
	f.set("architectures", []string{known.class, classifierHead})
	f.set("num_labels", out.Shape[0])
	labels, ok := keys.of("classifier.output_labels").([]string)
	if !ok {
		return
	}
	if int64(len(labels)) != out.Shape[0] {
		f.fault(keys.kind+".classifier.output_labels", fmt.Sprintf("%d labels", len(labels)),
			fmt.Sprintf("%d, the rows of cls.output", out.Shape[0]))
	}
	names := map[string]string{}
	for i, label := range labels {
		names[strconv.Itoa(i)] = label
	}
	f.set("id2label", names)
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
	if _, ok := f.tensors.Describe("rope_factors_long.weight"); ok {
		name = "longrope"
	}
	if name == "none" || name == "linear" && factor == 1.0 {
		return
	}
	scaling := map[string]any{"rope_type": name, "factor": factor}
	if name == "longrope" { // the factors are tensors
		delete(scaling, "factor")
		scaling["short_factor"], scaling["long_factor"] = ggufFactors(f.tensors, "rope_factors_short.weight"),
			ggufFactors(f.tensors, "rope_factors_long.weight")
	}
	f.alias["rope_scaling.rope_type"], f.alias["rope_scaling.factor"] = at+"type", factorKey
	f.alias["rope_scaling.short_factor"], f.alias["rope_scaling.long_factor"] = "rope_factors_short.weight", "rope_factors_long.weight"
	for key, to := range map[string]string{
		"original_context_length": "original_max_position_embeddings", "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow",
	} {
		f.alias["rope_scaling."+to] = at + key
		if v, ok := m[at+key]; ok {
			scaling[to] = v
		}
	}
	if v, ok := m[at+"attn_factor"]; ok && name == "longrope" {
		f.alias["rope_scaling.attention_factor"] = at + "attn_factor"
		scaling["attention_factor"] = v
	}
	f.set("rope_scaling", scaling)
}

// ggufFactors are the values of a vector in F32; ones if the tensors have no data, and nil if there is none.
func ggufFactors(tensors describer, name string) []float32 {
	t, ok := tensors.Describe(name)
	if !ok || t.DType != weights.F32 || len(t.Shape) != 1 || t.Shape[0] > maxHeadDim {
		return nil
	}
	values := slices.Repeat([]float32{1}, int(t.Shape[0]))
	if source, ok := tensors.(TensorSource); ok {
		t, _ = source.Tensor(name)
	}
	for i := range len(t.Data) / 4 {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
	}
	return values
}

// refuse reports the keys of the architecture that nothing reads, and what no op has. read are the keys that have a member.
func (f *fields) refuse(keys ggufKeys, read map[string]string, partial bool) {
	if !f.flag(true, "is_causal") {
		f.fault(keys.kind+".attention.causal", "false", "true")
	}
	longrope := f.ropeObject().text("", "rope_type") == "longrope"
	prefix := keys.kind + "."
	for _, key := range slices.Sorted(maps.Keys(keys.Metadata)) {
		own, ok := strings.CutPrefix(key, prefix)
		if _, known := read[own]; !ok || known || ggufIdle(own) {
			continue
		}
		switch v := keys.Metadata[key]; v {
		case nil, false, int64(0), float64(0):
		default:
			// a factor of 1 changes nothing
			if strings.HasPrefix(own, "rope.scaling.") && (v == 1.0 || own == "rope.scaling.attn_factor" && longrope) {
				continue
			}
			f.fault(key, excerpt([]byte(fmt.Sprint(v))), "none")
		}
	}
	head := f.integer(0, 0, maxHeadDim, "head_dim")
	for _, key := range []string{"rope.dimension_count", "attention.value_length"} {
		v, ok := keys.of(key).(int64)
		if _, known := read[key]; !ok || known || f.err != nil || v == int64(head) {
			continue
		}
		if partial && key == "rope.dimension_count" && v > 0 && v < int64(head) {
			f.set("partial_rotary_factor", float64(v)/float64(head))
			continue
		}
		f.fault(prefix+key, fmt.Sprint(v), fmt.Sprintf("the size of a head: %d", head))
	}
	if partial && keys.of("rope.dimension_count") == int64(head) {
		f.set("partial_rotary_factor", 1)
	}
}

// ggufIdle says whether a key is read elsewhere, or has no effect on the program.
func ggufIdle(key string) bool {
	switch key {
	case "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast",
		"rope.scaling.yarn_beta_slow",
		"rope.scale_linear", "rope.dimension_count", "attention.value_length", "pooling_type", // read
		"classifier.output_labels",                                   // read
		"vocab_size", "tensor_data_layout", "rope.scaling.finetuned", // of the tokens, and of the training
		"rope.dimension_sections": // of images: the positions of a token of text are the same
		return true
	}
	return strings.HasPrefix(key, "vision.") || strings.HasPrefix(key, "audio.") || strings.HasPrefix(key, "mm.")
}

// ggufRope takes the divisors of the rotary frequencies (Llama 3.1's scaling)
// from the tensor in which llama.cpp's converter leaves them.
func ggufRope(g *weights.GGUF, c *Config) error {
	const name = "rope_freqs.weight"
	t, ok := g.Tensor(name)
	if !ok || c.Rope.Type == "proportional" { // of Gemma 4, which has read it
		return nil
	}
	if t.DType != weights.F32 || !slices.Equal(t.Shape, []int64{int64(c.HeadDim / 2)}) || c.Rope.Type != "default" {
		return &weights.FormatError{File: g.Path, Name: name,
			Found:    fmt.Sprintf("%s %v with rope scaling %s", t.Type, t.Shape, c.Rope.Type),
			Expected: fmt.Sprintf("F32 [%d] without another scaling", c.HeadDim/2)}
	}
	c.Rope.Divisors = make([]float32, c.HeadDim/2)
	for i := range c.Rope.Divisors {
		v := math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
		if !(v >= minFactor && v <= maxFactor) {
			return &weights.FormatError{File: g.Path, Name: name, Found: fmt.Sprint(v),
				Expected: fmt.Sprintf("divisors of %g to %g", minFactor, float64(maxFactor))}
		}
		c.Rope.Divisors[i] = v
	}
	return nil
}

// mixtureKeys are the keys of experts as DeepSeek has them.
var mixtureKeys = map[string]string{
	"expert_count": "n_routed_experts", "expert_used_count": "num_experts_per_tok", "expert_feed_forward_length": "moe_intermediate_size",
	"expert_shared_count": "n_shared_experts", "expert_weights_scale": "routed_scaling_factor", "expert_weights_norm": "norm_topk_prob",
	"expert_group_count": "n_group", "expert_group_used_count": "topk_group", "leading_dense_block_count": "first_k_dense_replace",
	"expert_gating_func": ggufGating, "expert_shared_feed_forward_length": "", // as the others say
}

// ggufGating is the member of expert_gating_func, which no config.json has.
const ggufGating = "gguf.expert_gating_func"

// Values of expert_gating_func: gguf.ExpertGatingFuncType.
const (
	gatingSoftmax = 1
	gatingSigmoid = 2
)

// gating refuses another gating function than the family's; 0, or no such key, is that.
func (f *fields) gating(own int) {
	if found := f.integer(own, 0, 16, ggufGating); found != 0 && found != own {
		f.fault(ggufGating, fmt.Sprint(found), fmt.Sprint(own))
	}
}

// normalized refuses experts whose weights are not divided by their sum.
func (f *fields) normalized() { f.must(ggufNorm) }

// ggufNorm is the member of expert_weights_norm of families that have one value of it.
const ggufNorm = "gguf.expert_weights_norm"

// mixture sets the members of experts as llama.cpp has them without the keys.
func (f *fields) mixture(gating int) {
	f.gating(gating)
	f.defaults(map[string]any{"n_shared_experts": 0, "norm_topk_prob": false, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0})
	f.expertsScale()
}

// expertsScale makes the experts' factor 1 where a file has none, or 0.
func (f *fields) expertsScale() {
	if f.number(0, 0, 1e6, "routed_scaling_factor") == 0 {
		f.set("routed_scaling_factor", 1)
	}
}
