package device_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
)

// A folder's tensors as safetensors has them.
type stored struct {
	Type    string `json:"dtype"`
	Shape   []int  `json:"shape"`
	Offsets [2]int `json:"data_offsets"`
}

// writeFolder writes config.json and model.safetensors.
func writeFolder(t *testing.T, config map[string]any, header map[string]stored, data []byte) string {
	t.Helper()
	dir := t.TempDir()
	text, err := json.Marshal(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600))
	names, err := json.Marshal(header)
	require.NoError(t, err)
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(names))), names...)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), append(file, data...), 0o600))
	return dir
}

// fp8Value is the value of a code of E4M3.
func fp8Value(code byte) float64 {
	sign := 1 - 2*float64(code>>7)
	if code>>3&15 == 0 {
		return sign * math.Ldexp(float64(code&7), -9)
	}
	return sign * math.Ldexp(float64(8+code&7), int(code>>3&15)-10)
}

// fp8Mixture writes a mixture with the codes of FP8 and a scale for each 128 x 128 of them, as Qwen3's are published, and with the same
// values in F32.
func fp8Mixture(t *testing.T) (coded, plain string) {
	const hidden, inner, heads, kv, dim, experts, vocab = 128, 256, 8, 2, 32, 4, 61
	shapes := map[string][]int{"model.embed_tokens.weight": {vocab, hidden}, "lm_head.weight": {vocab, hidden},
		"model.norm.weight": {hidden}}
	for layer := range 2 {
		at := fmt.Sprintf("model.layers.%d.", layer)
		for name, shape := range map[string][]int{
			"input_layernorm": {hidden}, "post_attention_layernorm": {hidden}, "self_attn.q_norm": {dim}, "self_attn.k_norm": {dim},
			"self_attn.q_proj": {heads * dim, hidden}, "self_attn.k_proj": {kv * dim, hidden}, "self_attn.v_proj": {kv * dim, hidden},
			"self_attn.o_proj": {hidden, heads * dim}, "mlp.gate": {experts, hidden},
		} {
			shapes[at+name+".weight"] = shape
		}
		for e := range experts {
			part := fmt.Sprintf("%smlp.experts.%d.", at, e)
			shapes[part+"gate_proj.weight"], shapes[part+"up_proj.weight"], shapes[part+"down_proj.weight"] = []int{inner, hidden},
				[]int{inner, hidden}, []int{hidden, inner}
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	headers, data := [2]map[string]stored{{}, {}}, [2][]byte{}
	add := func(i int, name, kind string, shape []int, bytes []byte) {
		headers[i][name] = stored{kind, shape, [2]int{len(data[i]), len(data[i]) + len(bytes)}}
		data[i] = append(data[i], bytes...)
	}
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		shape := shapes[name]
		n, columns := shape[0], 1
		if len(shape) == 2 {
			columns = shape[1]
			n *= columns
		}
		values := make([]byte, 0, 4*n)
		put := func(x float64) { values = binary.LittleEndian.AppendUint32(values, math.Float32bits(float32(x))) }
		if !strings.HasSuffix(name, "_proj.weight") {
			for range n {
				put(1 + float64(len(shape)-1)*(random.NormFloat64()-1))
			}
			add(0, name, "F32", shape, values)
			add(1, name, "F32", shape, values)
			continue
		}
		codes, across := make([]byte, n), (columns+127)/128
		var scales []byte
		block := make([]float32, (shape[0]+127)/128*across)
		for i := range block { // of BF16
			block[i] = math.Float32frombits(math.Float32bits(float32(0.002*(1+random.Float64()))) &^ 0xffff)
			scales = binary.LittleEndian.AppendUint16(scales, uint16(math.Float32bits(block[i])>>16))
		}
		for i := range codes {
			if codes[i] = byte(random.IntN(256)); codes[i]&0x7f == 0x7f {
				codes[i] = 0
			}
			put(float64(block[i/columns/128*across+i%columns/128]) * fp8Value(codes[i]))
		}
		add(0, name, "F8_E4M3", shape, codes)
		add(0, name+"_scale_inv", "BF16", []int{(shape[0] + 127) / 128, across}, scales)
		add(1, name, "F32", shape, values)
	}
	config := map[string]any{
		"architectures": []string{"Qwen3MoeForCausalLM"}, "model_type": "qwen3_moe", "hidden_act": "silu", "hidden_size": hidden,
		"intermediate_size": inner, "moe_intermediate_size": inner, "num_experts": experts, "num_experts_per_tok": 2,
		"norm_topk_prob": true, "decoder_sparse_step": 1, "head_dim": dim, "num_attention_heads": heads, "num_key_value_heads": kv,
		"num_hidden_layers": 2, "vocab_size": vocab, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
		"tie_word_embeddings": false,
	}
	plain = writeFolder(t, config, headers[1], data[1])
	config["quantization_config"] = map[string]any{"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": []int{128, 128}}
	return writeFolder(t, config, headers[0], data[0]), plain
}

// TestExpertsOfFP8StayAsTheyAre: the logits are those of the formula's values in float32, and rows have the same bits alone and among
// others.
func TestExpertsOfFP8StayAsTheyAre(t *testing.T) {
	coded, plain := fp8Mixture(t)
	_, values, w := openModel(t, plain)
	tokens := quantizedTokens(40, values.Vocab)
	want := open(t, "ref", "", values, w, len(tokens)).run(t, tokens)
	_, p, c := openModel(t, coded)
	for _, op := range p.Ops {
		if op.Kind == model.OpLinear && op.Layer != model.None && op.Name != model.Router {
			require.Equal(t, model.WeightsBlocks, op.Weights.Type, op.Name)
		}
	}
	requireClose(t, want, open(t, "ref", "", p, c, len(tokens)).run(t, tokens), 1e-4*largest(want))
	for _, o := range variants(t, "cpu") {
		s := openWith(t, o, p, c, len(tokens))
		whole := s.run(t, tokens)
		t.Logf("%s is %.2g away", o.ISA, distance(want, whole))
		require.LessOrEqual(t, medianDistance(want, whole), allowed, o.ISA) // rounding chooses other experts in some rows
		s.restart()
		for i := range tokens {
			requireSameBits(t, whole[i], s.run(t, tokens[i:i+1])[0], i)
		}
	}
}
