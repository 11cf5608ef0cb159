package numerics_test

import (
	"bytes"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/numerics"
	"github.com/millrace/millrace/compute/weights"
)

// fill sets every field below v to something that is not zero.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range v.Fields() {
			fill(f)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
		fill(v.Index(1))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.String:
		v.SetString("x")
	case reflect.Float32:
		v.SetFloat(1)
	case reflect.Bool:
		v.SetBool(true)
	default:
		v.SetInt(2)
	}
}

// eachField calls change for every value below v, with the way to it, when it was changed.
func eachField(v reflect.Value, path string, changed func(path string)) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			eachField(v.Field(i), path+"."+v.Type().Field(i).Name, changed)
		}
		return
	case reflect.Slice:
		eachField(v.Index(1), path+"[1]", changed)
		before := reflect.ValueOf(v.Interface())
		v.Set(v.Slice(0, 1))
		changed(path + " shorter")
		v.Set(before)
		return
	}
	if v.Kind() == reflect.Pointer {
		eachField(v.Elem(), path, changed)
	}
	before := reflect.New(v.Type()).Elem()
	before.Set(v)
	v.SetZero()
	changed(path)
	v.Set(before)
}

func TestEveryIngredientChangesTheDigest(t *testing.T) {
	var i numerics.Ingredients
	fill(reflect.ValueOf(&i).Elem())
	seen := map[string]string{i.Digest(): "nothing"}
	require.Len(t, i.Digest(), 32+len("-"+i.Lossy))
	eachField(reflect.ValueOf(&i).Elem(), "", func(path string) {
		require.NotContains(t, seen, i.Digest(), path)
		seen[i.Digest()] = path
	})
	require.Len(t, seen, 8)
	seen[i.DigestOf(numerics.Version+1, "amd64")] = "version"
	seen[i.DigestOf(numerics.Version, "arm64")] = "architecture"
	seen[i.DigestOf(numerics.Version, "amd64")] = "this or another machine's"
	require.GreaterOrEqual(t, len(seen), 9)
}

// TestEveryFieldOfAProgramIsInItsText holds the text to fields that are added later, too.
func TestEveryFieldOfAProgramIsInItsText(t *testing.T) {
	var p model.Program
	fill(reflect.ValueOf(&p).Elem())
	text := numerics.Program(&p)
	eachField(reflect.ValueOf(&p).Elem(), "", func(path string) {
		// BlockSize follows from Blocks.
		follows := strings.HasSuffix(path, ".BlockSize")
		// the device's choice is another ingredient, which slabs have what changes no bits, and ops have what is evicted
		if follows || path == ".KV" || path == ".OneGroup" || path == ".EarlyLayers" || strings.HasPrefix(path, ".Eviction") {
			require.Equal(t, text, numerics.Program(&p))
			return
		}
		require.NotEqual(t, text, numerics.Program(&p), path)
	})
	require.Equal(t, text, numerics.Program(&p))
}

// TestTheTextOfAProgramKeepsItsNames: another text would end the streams of older processes, which continue at equal workers only.
func TestTheTextOfAProgramKeepsItsNames(t *testing.T) {
	var p model.Program
	fill(reflect.ValueOf(&p).Elem())
	const op = `{Kind:2 Name:"x" Layer:2 In:2 Out:2 Weight:2 Bias:2 Norm:2 Eps:0x1p+00 EmbedScale:0x1p+00 PositionOffset:2 ` +
		`Parts:[{Weight:2 Bias:2 Offset:2 Rows:2 Block:2 Stride:2 Interleaved:true} {Weight:2 Bias:2 Offset:2 Rows:2 Block:2 Stride:2 Interleaved:true}] ` +
		`Activation:2 Gated:true Accumulate:true Weights:{Type:2 Group:2} Heads:2 KVHeads:2 HeadDim:2 QNorm:2 KNorm:2 RotaryDim:2 ` +
		`RotaryInterleaved:true RotaryScale:0x1p+00 InvFreq:[0x1p+00 0x1p+00] Scale:0x1p+00 Window:2 ALiBiSlopes:[0x1p+00 0x1p+00] ` +
		`Sinks:2 SinkQ:2 Heavy:2 Recent:2 Routing:{Experts:2 TopK:2 Scores:2 Normalize:true Groups:2 TopGroups:2 Scale:0x1p+00 Jitter:0x1p+00 GroupScores:2} Routed:2 Route:2 ` +
		`NormOffset:2 NormWidth:2 NormGroups:2 ActA:0x1p+00 ActB:0x1p+00 NormLast:true Chunked:true Softcap:0x1p+00 NullScores:2 ` +
		`QScales:[0x1p+00 0x1p+00] QScaleOffset:2 QScaleTokens:2 WeighsIn:true Types:2 BothWays:true Pooling:2 ` +
		`Conv:{Weight:2 Bias:2 Channels:2 Kernel:2 Offset:2 Times:2 Gate:2 SiLU:true} ` +
		`Recur:{Rule:2 Heads:2 KeyHeads:2 Keys:2 Values:2 Q:2 K:2 V:2 Gates:2 Decay:2 Rate:2 ALog:2 DtBias:2 Skip:2 LeastStep:0x1p+00 MostStep:0x1p+00 RateScale:0x1p+00} ` +
		`Gate:{Gates:2 Offset:2 Group:2 Weight:2 First:true Eps:0x1p+00 Activation:2 Sparse:true Cutoff:0x1p+00} ` +
		`ValueDim:2 Stored:true KVLayer:2 Latent:true RotaryOffset:2 Tail:2 NormScale:0x1p+00 AltUp:{Step:2 Streams:2 Active:2 Coefs:2 X:2}}`
	require.Equal(t, `{Architecture:"x" Ops:[`+op+" "+op+`] Slots:[{Name:"x" Type:2 Width:2} {Name:"x" Type:2 Width:2}] `+
		`Tensors:[{Name:"x" Shape:[2 2] Blocks:"x" Bytes:2 Order:"x" First:2 Whole:2} {Name:"x" Shape:[2 2] Blocks:"x" Bytes:2 Order:"x" First:2 Whole:2}] Vocab:2 Hidden:2 Layers:2 KVHeads:2 HeadDim:2 MaxPositions:2 Classes:2 Ranks:2}`, numerics.Program(&p))
}

func TestTheGatesOfOlderProgramsKeepTheirText(t *testing.T) {
	gate := func(activation model.GateActivation) string {
		return numerics.Program(&model.Program{Ops: []model.Op{{Gate: &model.Gate{Gates: 3, Activation: activation}}}})
	}
	require.Equal(t, `{Ops:[{Gate:{Gates:3}}]}`, gate(model.GateSiLU))
	require.Equal(t, `{Ops:[{Gate:{Gates:3 Sigmoid:true}}]}`, gate(model.GateSigmoid))
}

func TestAFieldThatIsNotUsedIsNotInTheText(t *testing.T) {
	require.Equal(t, `{Architecture:"A" Ops:[{Kind:3 In:-1 Eps:0x1p-03}]}`, numerics.Program(&model.Program{
		Architecture: "A", Ops: []model.Op{{Kind: model.OpLinear, In: model.None, Eps: 0.125}},
	}))
}

func tensor(name string, size int) weights.Tensor {
	t := weights.Tensor{Name: name, DType: weights.BF16, Shape: []int64{int64(size / 2)}, Data: make([]byte, size), File: "a"}
	for i := range t.Data {
		t.Data[i] = byte(i * 7)
	}
	return t
}

// held are the tensors in use.
type held struct {
	mu         sync.Mutex
	now        map[string]bool
	used, most int
}

func (h *held) Use(names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.now == nil {
		h.now = map[string]bool{}
	}
	for _, name := range names {
		h.now[name] = true
	}
	h.used += len(names)
	h.most = max(h.most, len(h.now))
}

func (h *held) Forget(names []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range names {
		delete(h.now, name)
	}
	return nil
}

func content(t *testing.T, tensors []weights.Tensor) string {
	t.Helper()
	h := &held{}
	sum, err := numerics.Content(tensors, h)
	require.NoError(t, err)
	require.Equal(t, len(tensors), h.used)
	require.Empty(t, h.now)
	return sum
}

// TestFewTensorsAreUsedAtOnce: those that are made for their hash might not fit into memory together.
func TestFewTensorsAreUsedAtOnce(t *testing.T) {
	var all []weights.Tensor
	for i := range 200 {
		all = append(all, tensor(strconv.Itoa(i), 1<<16))
	}
	h := &held{}
	_, err := numerics.Content(all, h)
	require.NoError(t, err)
	require.LessOrEqual(t, h.most, 2*runtime.GOMAXPROCS(0)+1)
}

// TestContentIsOfNamesTypesShapesAndBytes changes one thing at a time, of a tensor that is
// hashed in pieces.
func TestContentIsOfNamesTypesShapesAndBytes(t *testing.T) {
	make2 := func() []weights.Tensor { return []weights.Tensor{tensor("a", 9<<20+6), tensor("b", 64)} }
	whole := content(t, make2())
	require.Equal(t, whole, content(t, make2()), "the same again")
	elsewhere := make2()
	elsewhere[0].File, elsewhere[0].Type = "model-00001-of-00002.safetensors", "as its file spells it"
	require.Equal(t, whole, content(t, elsewhere), "in another file")
	seen := map[string]string{whole: "nothing"}
	for name, change := range map[string]func(all []weights.Tensor){
		"1 ulp of the first weight": func(all []weights.Tensor) { all[0].Data[0]++ },
		"1 ulp in the second piece": func(all []weights.Tensor) { all[0].Data[4<<20]++ },
		"1 ulp of the last weight":  func(all []weights.Tensor) { all[1].Data[62]++ },
		"name":                      func(all []weights.Tensor) { all[1].Name = "c" },
		"type":                      func(all []weights.Tensor) { all[1].DType = weights.F16 },
		"shape":                     func(all []weights.Tensor) { all[1].Shape = []int64{2, 16} },
		"shorter":                   func(all []weights.Tensor) { all[0].Data = all[0].Data[:9<<20] },
		"pieces in another order": func(all []weights.Tensor) {
			d := all[0].Data
			d[0] = 77 // the pieces are alike otherwise
			d[0], d[4<<20] = d[4<<20], d[0]
		},
	} {
		all := make2()
		change(all)
		sum := content(t, all)
		require.NotContains(t, seen, sum, name)
		seen[sum] = name
	}
	swapped := make2()
	slices.Reverse(swapped)
	require.NotEqual(t, whole, content(t, swapped), "the order is the program's")
}

func TestThePromptIsOverTwoBlocksOfAttentionAndOfTheVocabulary(t *testing.T) {
	prompt := numerics.Prompt(97, 4096)
	require.Greater(t, len(prompt), 2*64)
	require.NotZero(t, len(prompt)%16, "the last slab is not full")
	require.Greater(t, len(slices.Compact(slices.Sorted(slices.Values(prompt)))), 50, "different ids")
	require.GreaterOrEqual(t, slices.Min(prompt), int32(0))
	require.Less(t, slices.Max(prompt), int32(97))
	require.Equal(t, prompt[:40], numerics.Prompt(97, 40), "a model of fewer positions")
	for _, id := range numerics.Prompt(1, 200) {
		require.Zero(t, id)
	}
}

func TestOneUlpOfOneLogitChangesItsBits(t *testing.T) {
	bits := numerics.Bits([]float32{1, 0, -3})
	require.NotEqual(t, bits, numerics.Bits([]float32{1.0000001, 0, -3}))
	require.NotEqual(t, bits, numerics.Bits([]float32{1, negativeZero(), -3}))
	require.Equal(t, bits, numerics.Bits([]float32{1, 0, -3}))
}

func negativeZero() float32 { return math.Float32frombits(1 << 31) }

func TestFieldsDoNotRunIntoEachOther(t *testing.T) {
	var all []string
	for _, pairs := range [][2]string{{"a", "b"}, {"ab", ""}, {"", "ab"}, {"a", "b1:"}, {"a:", "b"}} {
		var b bytes.Buffer
		numerics.Field(&b, pairs[0], pairs[1])
		all = append(all, b.String())
	}
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(all))), 5, strings.Join(all, "\n"))
}
