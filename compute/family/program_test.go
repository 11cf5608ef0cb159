package family_test

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/family/fixture"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

const fixtures = "../../testdata/models"

// forEach opens every fixture in a subtest.
func forEach(t *testing.T, test func(*testing.T, *fixture.Model)) {
	t.Helper()
	dirs, err := fixture.Dirs(fixtures)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(dirs), 28)
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m, err := fixture.Open(dir)
			require.NoError(t, err)
			defer func() { require.NoError(t, m.Weights.Close()) }()
			test(t, m)
		})
	}
}

// stacked are tensors that are read as parts of others.
var stacked = regexp.MustCompile(`\.[qkv]_conv1d\.weight$`)

// expertsOfImages are those of ERNIE 4.5 VL, after the four of text.
var expertsOfImages = regexp.MustCompile(`mlp\.gate\.weight_1$|mlp\.experts\.[4-7]\.`)

func TestProgramUsesEveryTensorOfTheCheckpoint(t *testing.T) {
	forEach(t, func(t *testing.T, m *fixture.Model) {
		var used []string
		for _, tensor := range m.Program.Tensors {
			used = append(used, tensor.Name)
		}
		slices.Sort(used)
		others := func(name string) bool { // those of images, parameters of an activation, and what derived tensors are made of
			if strings.HasSuffix(name, "_blocks") || strings.HasSuffix(name, "_scales") || strings.Contains(name, ".act_fn.") ||
				strings.HasSuffix(name, ".layer_scalar") ||
				stacked.MatchString(name) {
				return true
			}
			if m.Name == "minimax" && (strings.HasSuffix(name, ".slope_rate") || strings.HasSuffix(name, "_decay") &&
				!strings.HasPrefix(name, "lightning.")) {
				return true
			}
			if m.Name == "lfm3" && strings.HasSuffix(name, "self_attn.gate_proj.weight") {
				return true
			}
			if strings.Contains(name, ".indexer.") || strings.Contains(name, ".index_") || strings.HasPrefix(name, "model.wte.") ||
				m.Name == "ernie4_5-vl-moe" && expertsOfImages.MatchString(name) ||
				m.Name == "ling2" && strings.HasPrefix(name, "model.layers.3.") { // which predicts the token after the next one
				return true
			}
			part, _, _ := strings.Cut(strings.TrimPrefix(name, "model."), ".")
			return slices.Contains([]string{
				"vision_tower", "embed_vision", "multi_modal_projector", "visual", "vision_model", "connector", "mm_projector", "vqmodel",
				"embed_tokens_extend",
			}, part)
		}
		require.Equal(t, slices.DeleteFunc(m.Weights.Names(), others), used)
	})
}

func TestLayerIsEightOpsSevenOfOneNormAndTenWithNormsAfterBlocks(t *testing.T) {
	forEach(t, func(t *testing.T, m *fixture.Model) {
		perLayer := make([]int, m.Config.Layers)
		for _, op := range m.Program.Ops {
			if op.Layer != model.None && op.Kind != model.OpSelectRows {
				perLayer[op.Layer]++
			}
		}
		want, other := map[string]int{"GPTJForCausalLM": 7, "PhiForCausalLM": 7, "CohereForCausalLM": 7, "Cohere2ForCausalLM": 7,
			"Gemma3ForCausalLM": 10, "Glm4ForCausalLM": 10,
			"Gemma2ForCausalLM": 10, "Olmo2ForCausalLM": 10, "Olmo3ForCausalLM": 10, "HyperCLOVAXForCausalLM": 10,
			"Glm4vForConditionalGeneration": 10, "CodeGenForCausalLM": 7, "NanoChatForCausalLM": 9, "Gemma4UnifiedForCausalLM": 11,
			"CohereCompassForCausalLM": 7, "MuseGlimmerForConditionalGeneration": 13}[m.Config.Architecture]
		switch m.Name {
		case "stablelm-parallel", "falcon":
			want, other = 7, true
		case "cohere-norms":
			want, other = 9, true // two for the norms of q and k
		case "persimmon", "fuyu":
			want, other = 10, true
		}
		if !other {
			want = 8
		}
		// Two for the choice of experts, two or four for a shared MLP. Two more of gated attention, three of a short convolution for four
		// of attention, six of a recurrence.
		mixtures := map[string][]int{
			"qwen3_5": {10, 10, 10}, "qwen3-next": {10, 10, 16}, "qwen3_5-moe": {16, 16}, "lfm2": {7, 8, 7}, "lfm2-moe": {7, 8, 9},
			"bamba": {10, 8, 10}, "granite-hybrid": {10, 8, 10}, "mamba2": {7, 7, 7}, "nemotron-h": {7, 3, 5, 7}, "falcon-h1": {14, 14},
			"falcon-h1-norm": {14, 14}, "afmoe": {12, 16}, "hy-v3": {8, 12}, "flex-olmo": {12, 12}, "nemotron-h-moe": {5, 7, 7},
			"qwen3-moe": {10, 10}, "qwen3-moe-some": {8, 10, 10}, "mixtral": {10, 10}, "qwen2-moe": {14, 14}, "glm4-moe": {8, 12},
			"ernie4_5-moe": {8, 12}, "granite-moe": {10, 10}, "granite-moe-shared": {12, 12}, "dots1": {8, 12, 12}, "exaone-moe": {8, 12},
			"solar-open": {12, 12}, "qwen3-vl-moe": {10, 10}, "olmoe": {12, 12}, "minimax-m2": {12, 12}, "hunyuan-moe": {12, 12},
			"phimoe": {10, 10}, "gpt-oss": {10, 10}, "gpt-oss-mxfp4": {10, 10}, "llama4": {9, 13, 8, 13}, "granite-moe-swa": {12, 12},
			"mellum": {8, 10, 10}, "flint": {8, 8, 12, 12}, "aria": {12, 12}, "glm4v-moe": {8, 12}, "cohere2-moe": {7, 11, 11},
			"cohere2-moe-sigmoid": {11, 11}, "ling2": {8, 12, 12}, "ling2-bias": {12, 12}, "ling": {12, 12}, "ling-norm-head": {12, 12},
			"deepseek-moe": {8, 12},
			// One for the factor of values, one for the norms after blocks, and two for the gates of heads.
			"mimo-v2-flash": {9, 11, 11}, "lfm3": {12, 9, 12},
			// Four more of latents: a projection, two norms or one, and matrices of each head before and after attention.
			"deepseek-v2": {13, 17}, "deepseek-v2-groups": {15, 19}, "deepseek-v3": {15, 19}, "deepseek-v3-halves": {13, 17},
			"glm4-moe-lite": {15, 19, 15}, "mistral4": {15, 19}, "youtu": {15, 15}, "minicpm3": {15, 15}, "kimi-k25": {15, 19},
			"axk1": {15, 20, 15},
			// One for the norm of values, which shared ones have already; four for a layer's input; eight for experts beside the MLP.
			"gemma4": {11, 11, 11, 11, 11, 11}, "gemma4-e": {15, 15, 15, 14, 14, 14}, "gemma4-vision": {15, 15, 15, 14, 14, 14},
			"gemma4-moe": {19, 19},
			// Eight for alternating updates, four for LAuReL and its sum, five or six for a layer's input, two for sparse gates.
			"gemma3n": {31, 29, 31, 28, 30},
			// Ten of Mamba with three norms or none; ten of a delta net with decays of channels, and latents that nothing rotates.
			"olmo-hybrid": {10, 10, 10}, "olmo-hybrid-rope": {10, 10}, "mamba": {10, 10}, "falcon-mamba": {13, 13}, "jamba": {16, 8, 18},
			"kimi-linear": {14, 12, 18}, "minicpmv4_7": {10, 10}, "lara-mini": {14, 12, 12}, "nemotron-h-omni": {7, 3, 5},
			"qwen3-omni": {10, 10}, "ernie4_5-vl-moe": {8, 12}, "minimax-m3": {8, 12}, "minimax-m3-text": {12, 8}, "deepseek-ocr2": {8, 12},
			"deepseek-v32": {15, 19, 15}, "glm-moe-dsa": {15, 15, 19},
			// Two for residuals that are normed, and one less of a lightning attention than of a delta net.
			"minimax":    {13, 12, 13},
			"sarvam-moe": {8, 12, 12}, "sarvam-moe-saved": {8, 12}, "sarvam-mla": {13, 17},
			// Five of attention, three of an MLP, two of a matrix.
			"deci": {8, 3, 8, 5, 5}, "deci-last": {3, 8, 3},
			"bitnet": {10, 10}, // two for the norms before the last projections
			// Three for the keys and values of all later layers.
			"yoco":           {8, 8, 11, 8},
			"yoco-retention": {10, 10, 11, 8},
		}
		if counts, listed := mixtures[m.Name]; listed || m.Program.HasExperts() || m.Program.StateBytes() > 0 {
			require.Equal(t, counts, perLayer)
			return
		}
		for _, n := range perLayer {
			require.Equal(t, want, n)
		}
	})
}

func TestLlamaLayerIsThePapersSequence(t *testing.T) {
	m, err := fixture.Open(filepath.Join(fixtures, "llama-gqa"))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Weights.Close()) }()
	var names []string
	for _, op := range m.Program.Ops {
		if op.Layer <= 0 {
			names = append(names, op.Name)
		}
	}
	require.Equal(t, []string{"embed",
		"attn.norm", "attn.qkv", "attn.rope_store", "attn.attention", "attn.out", "mlp.norm", "mlp.gate_up", "mlp.down",
		"final.norm", "logits"}, names)

	p := m.Program
	qkv, gateUp, logits := p.Ops[2], p.Ops[7], p.Ops[len(p.Ops)-1]
	require.Equal(t, []int{96, 32, 32}, []int{qkv.Parts[0].Rows, qkv.Parts[1].Rows, qkv.Parts[2].Rows}, "6 and 2 heads of 16")
	require.Equal(t, model.Slot{Name: "qkv", Type: model.SlotF32, Width: 160}, p.Slots[qkv.Out])
	require.True(t, gateUp.Gated)
	require.Equal(t, model.ActSiLU, gateUp.Activation)
	require.Equal(t, "lm_head.weight", p.Tensors[logits.Parts[0].Weight].Name, "not tied")
	require.Equal(t, []int32{2, 5}, m.Config.Generation.EOS)
}

// TestTheLastLayerContinuesWithTheOutputs: the first OpSelectRows follows the last op over a sequence, the gate of what it gives, or the
// norm of a layer without one. Slots written before it are read after it only by OpSelectRows.
func TestTheLastLayerContinuesWithTheOutputs(t *testing.T) {
	forEach(t, func(t *testing.T, m *fixture.Model) {
		ops := m.Program.Ops
		first := slices.IndexFunc(ops, func(op model.Op) bool { return op.Kind == model.OpSelectRows })
		last := []model.OpKind{model.OpAttention, model.OpConv, model.OpGate, model.OpNorm}
		require.Contains(t, last, ops[first-1].Kind)
		require.Equal(t, m.Config.Layers-1, ops[first-1].Layer)
		outputs := map[int]bool{} // slots that hold their rows
		for _, op := range ops[first:] {
			require.Equal(t, op.Kind != model.OpSelectRows, outputs[op.In], "%s reads slot %d", op.Name, op.In)
			if op.Accumulate {
				require.True(t, outputs[op.Out], "%s adds to slot %d", op.Name, op.Out)
			}
			outputs[op.Out] = true
		}
	})
}

// TestTheWindowOfAProgramIsItsLargest, of the layers that have one.
func TestTheWindowOfAProgramIsItsLargest(t *testing.T) {
	for name, want := range map[string]int{"mistral-window": 11, "qwen2-window": 7, "llama-gqa": 0, "bloom-6-heads": 0} {
		m, err := fixture.Open(filepath.Join(fixtures, name))
		require.NoError(t, err)
		require.Equal(t, want, m.Program.Window(), name)
		for i := range m.Program.Ops {
			if op := &m.Program.Ops[i]; op.Kind == model.OpAttention && want > 0 {
				op.Window = 1 + op.Layer
			}
		}
		if want > 0 {
			require.Equal(t, m.Program.Layers, m.Program.Window())
		}
		require.NoError(t, m.Weights.Close())
	}
}

// TestProgramIsWellFormed holds every op against the rules of the C header.
func TestProgramIsWellFormed(t *testing.T) {
	forEach(t, func(t *testing.T, m *fixture.Model) {
		p := m.Program
		for i := range p.Ops {
			checkOp(t, p, &p.Ops[i])
		}
		last := p.Ops[len(p.Ops)-1]
		require.Equal(t, model.OpLinear, last.Kind)
		require.Equal(t, model.Slot{Name: "logits", Type: model.SlotF32, Width: m.Config.Vocab}, p.Slots[last.Out])
	})
}

func checkOp(t *testing.T, p *model.Program, op *model.Op) {
	t.Helper()
	out := p.Slots[op.Out]
	switch op.Kind {
	case model.OpEmbed:
		require.Equal(t, model.None, op.In)
		require.True(t, op.Weight != model.None || op.Bias != model.None)
		for _, table := range []int{op.Weight, op.Bias} {
			if table != model.None {
				require.EqualValues(t, out.Width, p.Tensors[table].Shape[1], op.Name)
			}
		}
	case model.OpNorm, model.OpSelectRows:
		require.Equal(t, p.Slots[op.In].Width, out.Width, op.Name)
	case model.OpLinear:
		checkLinear(t, p, op)
	case model.OpRopeStore, model.OpAttention:
		require.Equal(t, model.SlotF32, p.Slots[op.In].Type)
		width := op.Heads * op.HeadDim
		_, caches := p.Places()[op.CacheLayer()]
		switch {
		case op.Stored && !caches: // it turns the first heads of a row
			require.Equal(t, model.OpRopeStore, op.Kind)
			width = max(width, p.Slots[op.In].Width)
		case op.Stored:
		case op.Latent:
			width += op.KVHeads * op.HeadDim
		default:
			width += op.KVHeads * (op.HeadDim + cmp.Or(op.ValueDim, op.HeadDim))
		}
		require.Equal(t, width, p.Slots[op.In].Width)
		require.LessOrEqual(t, op.RotaryOffset+op.RotaryDim, op.HeadDim)
		require.Len(t, op.InvFreq, op.RotaryDim/2)
	case model.OpRoute:
		require.Equal(t, op.Routing.Experts, p.Slots[op.In].Width)
		require.Equal(t, 2*op.Routing.TopK, out.Width)
	case model.OpConv:
		require.Equal(t, []int64{int64(op.Conv.Channels), int64(op.Conv.Kernel)}, p.Tensors[op.Conv.Weight].Shape)
		require.Equal(t, op.Conv.Channels, out.Width)
	case model.OpRecur:
		r := op.Recur
		require.Equal(t, r.Heads*r.Values, out.Width)
		if r.Rule == model.RecurScan {
			require.Equal(t, out.Width, p.Slots[op.In].Width)
			require.Equal(t, 2*r.Keys, p.Slots[r.Rates].Width)
			require.Equal(t, []int64{int64(out.Width), int64(r.Keys)}, p.Tensors[r.ALog].Shape)
			return
		}
		require.Equal(t, 2*r.KeyHeads*r.Keys+r.Heads*r.Values, p.Slots[op.In].Width)
		require.Equal(t, []int64{int64(r.Heads)}, p.Tensors[r.ALog].Shape)
	case model.OpGate:
		require.Equal(t, p.Slots[op.In].Width, out.Width)
		require.LessOrEqual(t, op.Gate.Offset+out.Width, p.Slots[op.Gate.Gates].Width)
	case model.OpAltUp:
		for i := range op.AltUp.Streams {
			require.Equal(t, model.Slot{Name: p.Slots[op.In+i].Name, Type: model.SlotF32, Width: out.Width}, p.Slots[op.In+i])
		}
		require.Equal(t, op.In, op.Out)
	default:
		t.Fatalf("%s: kind %v", op.Name, op.Kind)
	}
}

func checkLinear(t *testing.T, p *model.Program, op *model.Op) {
	t.Helper()
	rows, in, parts := 0, p.Slots[op.In].Width, 2
	switch n := op.Routing; op.Routed {
	case model.RoutedNone:
	case model.RoutedEach:
		parts *= n.Experts
		defer func() { require.Equal(t, p.Slots[op.Out].Width*n.Experts, rows*n.TopK, op.Name) }()
	case model.RoutedSum:
		in /= n.TopK
		defer func() { require.Equal(t, p.Slots[op.Out].Width*n.Experts, rows, op.Name) }()
	case model.RoutedHeads:
		in = in/n.Experts - op.Tail
		defer func() { require.Equal(t, p.Slots[op.Out].Width, rows+n.Experts*op.Tail, op.Name) }()
	}
	for _, part := range op.Parts {
		rows += part.Rows
		last := part.Offset + (part.Rows-1)/part.Block*part.Stride + (part.Rows-1)%part.Block
		require.Less(t, int64(last), p.Tensors[part.Weight].Shape[0], op.Name)
		require.EqualValues(t, in, p.Tensors[part.Weight].Shape[1], op.Name)
		if part.Bias != model.None {
			require.Equal(t, p.Tensors[part.Weight].Shape[:1], p.Tensors[part.Bias].Shape, op.Name)
		}
	}
	if op.Gated {
		require.Len(t, op.Parts, parts)
		rows /= 2
	}
	if op.Routed == model.RoutedNone {
		require.Equal(t, p.Slots[op.Out].Width, rows, op.Name)
	}
	if op.Accumulate {
		require.Equal(t, model.SlotF32, p.Slots[op.Out].Type, op.Name)
	}
}

// TestExpertsOfOneTensorAreThoseOfMany: transformers keeps the experts of a layer in one tensor, GGUF in three, checkpoints of the Hub one
// by one.
func TestExpertsOfOneTensorAreThoseOfMany(t *testing.T) {
	m, err := fixture.Open(filepath.Join(fixtures, "qwen3-moe"))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Weights.Close()) }()
	const experts, rows, in = 5, 40, 48
	parts := func(source renamed) (up, down []model.Part, tensors []model.Tensor) {
		p, err := family.Build(m.Config, source)
		require.NoError(t, err)
		for _, op := range p.Ops {
			switch {
			case op.Layer != 0:
			case op.Name == "mlp.experts_up":
				up = op.Parts
			case op.Name == "mlp.experts_down":
				down = op.Parts
			}
		}
		return up, down, p.Tensors
	}
	single := "model.layers.%d.mlp.experts.%d.%s_proj.weight"
	for name, stacked := range map[string]map[string][]int64{
		"two":   {"gate_up_proj": {experts, 2 * rows, in}, "down_proj": {experts, in, rows}},
		"three": {"gate_proj.weight": {experts, rows, in}, "up_proj.weight": {experts, rows, in}, "down_proj.weight": {experts, in, rows}},
	} {
		source := renamed{m.Weights, map[string]weights.Tensor{}, func(name string) bool { return strings.Contains(name, ".experts.") }}
		for layer := range 2 {
			for tensor, shape := range stacked {
				source.own[fmt.Sprintf("model.layers.%d.mlp.experts.%s", layer, tensor)] = weights.Tensor{DType: weights.BF16, Shape: shape}
			}
		}
		up, down, tensors := parts(source)
		require.Len(t, up, 2*experts, name)
		require.Len(t, down, experts, name)
		for e := range experts {
			gate := e * rows
			if name == "two" {
				gate *= 2
			}
			require.Equal(t, gate, up[2*e].Offset, name)
			require.Equal(t, e*in, down[e].Offset, name)
			require.Equal(t, []int64{experts * in, rows}, tensors[down[e].Weight].Shape)
		}
		require.Equal(t, name == "two", up[0].Weight == up[1].Weight)
	}
	up, _, tensors := parts(renamed{m.Weights, nil, func(string) bool { return false }})
	require.Equal(t, fmt.Sprintf(single, 0, 3, "up"), tensors[up[7].Weight].Name)
}

// renamed is a checkpoint without some of its tensors, and with others.
type renamed struct {
	family.TensorSource
	own  map[string]weights.Tensor
	hide func(name string) bool
}

func (r renamed) Tensor(name string) (weights.Tensor, bool) {
	if t, ok := r.own[name]; ok {
		return t, true
	}
	if r.hide(name) {
		return weights.Tensor{}, false
	}
	return r.TensorSource.Tensor(name)
}

func TestAttributesOfTheVariants(t *testing.T) {
	find := func(m *model.Program, name string, layer int) model.Op {
		i := slices.IndexFunc(m.Ops, func(op model.Op) bool { return op.Name == name && op.Layer == layer })
		require.GreaterOrEqual(t, i, 0, name)
		return m.Ops[i]
	}
	forEach(t, func(t *testing.T, m *fixture.Model) {
		p := m.Program
		if !slices.ContainsFunc(p.Ops, func(op model.Op) bool { return op.Kind == model.OpAttention && op.Layer == 1 }) {
			return
		}
		rope, att := find(p, "attn.rope_store", 1), find(p, "attn.attention", 1)
		logits := p.Ops[len(p.Ops)-1]
		if len(m.Expected.InvFreq) > 0 {
			of := rope
			if layer, ok := map[string]int{"gemma3n": 0, "gemma4-moe": 0, "granite-swa": 0, "mellum": 0, "flint": 2}[m.Name]; ok {
				of = find(p, "attn.rope_store", layer) // whose table it is
			}
			want := m.Expected.InvFreq
			if m.Name == "nanochat" { // by the negative angle
				for i := range want {
					want[i] = -want[i]
				}
			}
			if m.Name == "ernie4_5-vl-moe" { // those of each axis of an image together
				slices.SortFunc(want, func(a, b float32) int { return cmp.Compare(b, a) })
			}
			require.InDeltaSlice(t, want, of.InvFreq, 1e-7)
			require.InDelta(t, m.Expected.RotaryScale, of.RotaryScale, 1e-7)
		}
		require.InDeltaSlice(t, m.Expected.ALiBiSlopes, att.ALiBiSlopes, 1e-7)
		switch m.Name {
		case "llama-tied":
			require.Equal(t, "model.embed_tokens.weight", p.Tensors[logits.Parts[0].Weight].Name)
		case "llama-bias":
			require.NotEqual(t, model.None, find(p, "attn.out", 1).Parts[0].Bias)
			require.NotEqual(t, model.None, find(p, "mlp.down", 1).Parts[0].Bias)
		case "llama-linear":
			require.Equal(t, 512, p.MaxPositions)
		case "mistral-window":
			require.Equal(t, 11, att.Window)
		case "qwen2":
			require.NotEqual(t, model.None, find(p, "attn.qkv", 1).Parts[2].Bias)
			require.Equal(t, model.None, find(p, "attn.out", 1).Parts[0].Bias)
		case "qwen2-window":
			require.Equal(t, 0, find(p, "attn.attention", 0).Window)
			require.Equal(t, 7, att.Window)
		case "qwen3":
			require.Equal(t, "model.layers.1.self_attn.q_norm.weight", p.Tensors[rope.QNorm].Name)
		case "phi3":
			require.Equal(t, 13, att.Window)
			require.Equal(t, 16, rope.RotaryDim)
			v, up := find(p, "attn.qkv", 1).Parts[2], find(p, "mlp.gate_up", 1).Parts[1]
			require.Equal(t, []int{64 + 32, 32, 104, 104}, []int{v.Offset, v.Rows, up.Offset, up.Rows})
		case "phi3-longrope":
			require.Equal(t, 12, rope.RotaryDim)
			require.False(t, rope.RotaryInterleaved)
		case "seed-oss", "seed-oss-bias":
			other := m.Name == "seed-oss-bias"
			require.Equal(t, other, find(p, "attn.qkv", 1).Parts[2].Bias == model.None)
			require.Equal(t, other, find(p, "attn.out", 1).Parts[0].Bias != model.None)
			require.Equal(t, other, find(p, "mlp.down", 1).Parts[0].Bias != model.None)
		case "ernie45", "ernie45-bias":
			require.True(t, rope.RotaryInterleaved)
			require.Equal(t, m.Name == "ernie45-bias", find(p, "mlp.down", 1).Parts[0].Bias != model.None)
		case "glm", "glm-no-bias", "glm4":
			require.True(t, rope.RotaryInterleaved)
			require.Equal(t, map[bool]int{true: 12, false: 8}[m.Name == "glm-no-bias"], rope.RotaryDim)
			require.Equal(t, m.Name != "glm-no-bias", find(p, "attn.qkv", 1).Parts[2].Bias != model.None)
			require.Equal(t, 104, find(p, "mlp.gate_up", 1).Parts[1].Offset)
			require.Equal(t, m.Name != "glm4", find(p, "mlp.down", 1).Accumulate)
		case "exaone4":
			require.Equal(t, []int{9, 9, 0, 9}, m.Config.Windows)
			require.Equal(t, []int{8, 0}, []int{rope.RotaryDim, find(p, "attn.rope_store", 2).RotaryDim})
			require.NotEqual(t, model.None, rope.QNorm)
			require.Equal(t, model.SlotF32, p.Slots[find(p, "attn.qkv", 1).In].Type, "reads the residual itself")
		case "exaone4-full":
			require.Equal(t, []int{0, 8}, []int{att.Window, rope.RotaryDim})
		case "granite":
			require.InDelta(t, 1.5/0.5, find(p, "embed", model.None).EmbedScale, 1e-6)
			require.InDelta(t, 0.01/0.25, find(p, "mlp.norm", 1).Eps, 1e-6)
			require.InDelta(t, 0.2, att.Scale, 1e-7)
		case "granite-bias":
			require.InDelta(t, 1, find(p, "embed", model.None).EmbedScale, 0)
			require.NotEqual(t, model.None, find(p, "mlp.down", 1).Parts[0].Bias)
		case "gemma", "gemma-bias":
			require.Equal(t, map[string]float32{"gemma": 6.9375, "gemma-bias": 6.9296875}[m.Name], find(p, "embed", model.None).EmbedScale,
				"in bf16 and f16")
			require.Equal(t, model.ActGELUTanh, find(p, "mlp.gate_up", 1).Activation)
			require.Equal(t, m.Name == "gemma-bias", find(p, "attn.out", 1).Parts[0].Bias != model.None)
		case "smollm3":
			require.Equal(t, []int{8, 8, 0}, []int{find(p, "attn.rope_store", 0).RotaryDim, rope.RotaryDim,
				find(p, "attn.rope_store", 2).RotaryDim})
			require.Nil(t, m.Config.Windows)
		case "smollm3-window":
			require.Equal(t, []int{0, 8, 0}, []int{find(p, "attn.rope_store", 0).RotaryDim, rope.RotaryDim,
				find(p, "attn.rope_store", 2).RotaryDim})
			require.Equal(t, []int{9, 0, 9}, m.Config.Windows)
		case "gemma3", "gemma3-f32", "gemma3-vision":
			require.Equal(t, []int{9, 9, 0, 9}, []int{find(p, "attn.attention", 0).Window, att.Window, find(p, "attn.attention", 2).Window,
				find(p, "attn.attention", 3).Window})
			scalar := map[bool]float64{true: 16, false: 24}[m.Name == "gemma3"]
			require.InDelta(t, 1/math.Sqrt(scalar), att.Scale, 1e-7)
			require.True(t, find(p, "mlp.post_norm", 1).Accumulate)
			require.NotEqual(t, rope.InvFreq, find(p, "attn.rope_store", 2).InvFreq, "another base")
			scale := float32(6.9375) // the root of 48 in bf16
			if m.Name == "gemma3-f32" {
				scale = float32(math.Sqrt(48))
			}
			require.Equal(t, scale, find(p, "embed", model.None).EmbedScale)
		case "deepseek-v2", "deepseek-v2-groups", "deepseek-v3", "deepseek-v3-halves", "mistral4":
			require.Equal(t, []int{0, 1, 32, 24}, []int{rope.Heads, rope.KVHeads, rope.HeadDim, rope.ValueDim})
			require.Equal(t, []int{6, 1, 32, 24, 1}, []int{att.Heads, att.KVHeads, att.HeadDim, att.ValueDim, att.KVLayer})
			require.Equal(t, []bool{true, true, m.Name != "deepseek-v3-halves"}, []bool{att.Stored, att.Latent, rope.RotaryInterleaved})
			mscale := 0.1*map[string]float64{"deepseek-v2": 0.707, "deepseek-v3": 0.8}[m.Name]*math.Log(4) + 1
			if m.Name == "mistral4" {
				mscale = 0.1*math.Log(2) + 1
			}
			require.InDelta(t, mscale*mscale/math.Sqrt(24), att.Scale, 1e-7)
			require.InDelta(t, 1e-6, find(p, "attn.kv_a_norm", 1).Eps, 1e-12)
			k, v := find(p, "attn.k_b", 1), find(p, "attn.v_b", 1)
			require.Equal(t, []int{8, 5 * 24, 24, 16}, []int{k.Tail, k.Parts[5].Offset, k.Parts[5].Rows,
				int(p.Tensors[k.Parts[5].Weight].Shape[1])})
			require.Equal(t, []int{0, 5*48 + 16, 32}, []int{v.Tail, v.Parts[5].Offset, v.Parts[5].Rows})
			route := find(p, "mlp.route", 1).Routing
			want := map[string]model.Routing{
				"deepseek-v2":        {Scores: model.RouteSoftmax, Groups: 1, TopGroups: 1, GroupScores: 1},
				"deepseek-v2-groups": {Scores: model.RouteSoftmax, Groups: 3, TopGroups: 2, GroupScores: 1},
				"deepseek-v3":        {Scores: model.RouteSigmoid, Groups: 2, TopGroups: 1, Normalize: true},
				"deepseek-v3-halves": {Scores: model.RouteSigmoid, Groups: 1, TopGroups: 1},
				"mistral4":           {Scores: model.RouteSoftmax, Groups: 1, TopGroups: 1, Normalize: true},
			}[m.Name]
			want.Experts, want.TopK, want.Scale = 6, 2, 1.5
			require.Equal(t, want, route)
			require.Equal(t, m.Name == "mistral4", find(p, "attn.rope", 1).QScales != nil)
		case "starcoder2":
			require.Equal(t, 10, att.Window)
			require.Equal(t, model.NormLayer, find(p, "mlp.norm", 1).Norm)
			require.NotEqual(t, model.None, find(p, "mlp.out", 1).Parts[0].Bias)
		case "starcoder2-plain":
			require.Equal(t, 0, att.Window)
			require.Equal(t, model.None, find(p, "attn.qkv", 1).Parts[0].Bias)
			require.Equal(t, "lm_head.weight", p.Tensors[logits.Parts[0].Weight].Name)
		case "gptneox", "gptneox-serial":
			serial := m.Name == "gptneox-serial"
			require.Equal(t, map[bool]int{false: 4, true: 8}[serial], rope.RotaryDim)
			require.False(t, rope.RotaryInterleaved)
			index := func(name string) int {
				return slices.IndexFunc(p.Ops, func(op model.Op) bool { return op.Name == name && op.Layer == 1 })
			}
			require.Equal(t, serial, index("attn.out") < index("mlp.norm"))
			require.Equal(t, serial, find(p, "attn.qkv", 1).Parts[0].Bias == model.None)
			k := find(p, "attn.qkv", 1).Parts[1]
			require.Equal(t, []int{16, 64, 16, 48}, []int{k.Offset, k.Rows, k.Block, k.Stride})
			require.Equal(t, map[bool]string{false: "embed_out.weight", true: "lm_head.weight"}[serial],
				p.Tensors[logits.Parts[0].Weight].Name)
		case "phi", "phi-gqa":
			require.Equal(t, map[string]int{"phi": 8, "phi-gqa": 4}[m.Name], rope.RotaryDim)
			require.Equal(t, "lm_head.bias", p.Tensors[logits.Parts[0].Bias].Name)
			require.Equal(t, find(p, "attn.qkv", 0).In, find(p, "mlp.in", 0).In, "one norm")
		case "stablelm", "stablelm-parallel":
			parallel := m.Name == "stablelm-parallel"
			require.Equal(t, 4, rope.RotaryDim)
			require.Equal(t, parallel, find(p, "attn.qkv", 1).Parts[2].Bias != model.None)
			require.Equal(t, model.None, find(p, "attn.out", 1).Parts[0].Bias)
			require.True(t, find(p, "mlp.gate_up", 1).Gated)
		case "cohere", "cohere-bias", "cohere2":
			require.True(t, rope.RotaryInterleaved)
			require.Equal(t, model.None, find(p, "attn.norm", 1).Bias)
			require.Equal(t, m.Name == "cohere-bias", find(p, "attn.out", 1).Parts[0].Bias != model.None)
			for i := range m.Config.Layers {
				local, all := find(p, "attn.attention", i).Window > 0, m.Name != "cohere2"
				require.Equal(t, !all && i != 2, local)
				require.Equal(t, all || local, find(p, "attn.rope_store", i).RotaryDim > 0)
			}
		case "falcon", "falcon-groups", "falcon-serial":
			k := find(p, "attn.qkv", 1).Parts[1]
			expected := map[string][]int{"falcon": {64, 16, 16, 96}, "falcon-groups": {32, 32, 16, 64},
				"falcon-serial": {16, 64, 16, 48}}[m.Name]
			require.Equal(t, expected, []int{k.Offset, k.Rows, k.Block, k.Stride})
			require.Equal(t, m.Name == "falcon-serial", find(p, "mlp.out", 1).Parts[0].Bias != model.None)
			require.Equal(t, 16, rope.RotaryDim)
		case "gptj":
			require.True(t, rope.RotaryInterleaved)
			require.Equal(t, 6, rope.RotaryDim)
			require.Equal(t, "lm_head.bias", p.Tensors[logits.Parts[0].Bias].Name)
		case "opt-postnorm":
			require.Equal(t, 2, find(p, "embed", model.None).PositionOffset)
			require.Equal(t, model.SlotF32, p.Slots[find(p, "attn.qkv", 1).In].Type, "reads the residual itself")
		case "bloom-6-heads":
			v := find(p, "attn.qkv", 1).Parts[2]
			require.Equal(t, []int{16, 48, 8, 24}, []int{v.Offset, v.Rows, v.Block, v.Stride})
		}
	})
}

// fake is a source that holds the tensors of a checkpoint with changes.
type fake struct {
	source  family.TensorSource
	changes map[string]*weights.Tensor // nil: missing
}

func (f fake) Tensor(name string) (weights.Tensor, bool) {
	if t, ok := f.changes[name]; ok {
		if t == nil {
			return weights.Tensor{}, false
		}
		return *t, true
	}
	return f.source.Tensor(name)
}

func TestTiedHeadFollowsWhatTheCheckpointHolds(t *testing.T) {
	m, err := fixture.Open(filepath.Join(fixtures, "llama-tied"))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Weights.Close()) }()
	const embed, head = "model.embed_tokens.weight", "lm_head.weight"
	table, ok := m.Weights.Tensor(embed)
	require.True(t, ok)
	other := table
	other.Data = slices.Clone(table.Data)
	other.Data[17] ^= 1
	for _, c := range []struct {
		name                  string
		changes               map[string]*weights.Tensor
		wantTable, wantLogits string
	}{
		{"table only", nil, embed, embed},
		{"equal head", map[string]*weights.Tensor{head: &table}, embed, embed},
		{"another head", map[string]*weights.Tensor{head: &other}, embed, head},
		{"head only", map[string]*weights.Tensor{embed: nil, head: &table}, head, head},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := family.Build(m.Config, fake{m.Weights, c.changes})
			require.NoError(t, err)
			require.Equal(t, c.wantTable, p.Tensors[p.Ops[0].Weight].Name)
			require.Equal(t, c.wantLogits, p.Tensors[p.Ops[len(p.Ops)-1].Parts[0].Weight].Name)
		})
	}
}

func TestBuildFaultsNameFileTensorFoundAndExpected(t *testing.T) {
	m, err := fixture.Open(filepath.Join(fixtures, "llama-gqa"))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Weights.Close()) }()
	const up, table = "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"
	for _, c := range []struct {
		name, tensor string
		change       *weights.Tensor
		want         string
	}{
		{"missing", up, nil, "llama-gqa: " + up + ": found no such tensor, expected one of shape [104 48]"},
		{"shape", up, &weights.Tensor{File: "f", DType: weights.BF16, Shape: []int64{104, 47}},
			"f: " + up + ": found shape [104 47], expected [104 48]"},
		{"rank", up, &weights.Tensor{File: "f", DType: weights.BF16, Shape: []int64{104 * 48}},
			"f: " + up + ": found shape [4992], expected [104 48]"},
		{"type", up, &weights.Tensor{File: "f", DType: weights.Other, Type: "F8_E4M3", Shape: []int64{104, 48}},
			"f: " + up + ": found type F8_E4M3, expected F32, F16 or BF16"},
		{"vocabulary", table, &weights.Tensor{File: "f", DType: weights.F32, Shape: []int64{132, 48}},
			"f: " + table + ": found a vocabulary of 132, expected 131, the vocab_size of "},
		{"no table", table, nil, table + ": found no such tensor, expected one of shape [131 48]"},
		{"head", "lm_head.weight", nil, "lm_head.weight: found no such tensor, expected one of shape [131 48]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := family.Build(m.Config, fake{m.Weights, map[string]*weights.Tensor{c.tensor: c.change}})
			var format *weights.FormatError
			require.ErrorAs(t, err, &format)
			require.Contains(t, err.Error(), c.want)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

// headless is a checkpoint of hidden states: it has no output layer.
type headless struct{ *weights.Checkpoint }

// Describe implements the builder's source.
func (h headless) Describe(name string) (weights.Tensor, bool) {
	if name == "lm_head.weight" {
		return weights.Tensor{}, false
	}
	return h.Checkpoint.Describe(name)
}

func TestAClassWithoutOutputLayerNeedsNone(t *testing.T) {
	m, err := fixture.Open(filepath.Join(fixtures, "llama-gqa"))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Weights.Close()) }()
	_, err = family.Build(m.Config, headless{m.Weights})
	require.ErrorContains(t, err, "lm_head.weight: found no such tensor")
	m.Config.NoHead = true
	p, err := family.Build(m.Config, headless{m.Weights})
	require.NoError(t, err)
	require.Equal(t, "model.embed_tokens.weight", p.Tensors[p.Ops[len(p.Ops)-1].Parts[0].Weight].Name)
}
