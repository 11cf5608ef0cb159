package weights

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// Quantization is the quantization_config of a config.json.
type Quantization struct {
	Method     string   `json:"quant_method"` // a key of quantMethods
	Bits       int      `json:"bits"`
	GroupSize  int      `json:"group_size"` // inputs that share a scale; -1: all
	DescAct    bool     `json:"desc_act"`   // gptq: inputs are in groups by g_idx
	Checkpoint string   `json:"checkpoint_format"`
	Version    string   `json:"version"`        // awq: the layout
	Packing    string   `json:"packing_format"` // auto-round: as gptq or as awq
	Block      []int    `json:"weight_block_size"`
	FP8        string   `json:"fmt"`               // fp8: the type of the weights
	Linear     string   `json:"linear_class"`      // bitnet
	Mode       string   `json:"quantization_mode"` // bitnet
	InnerNorms bool     `json:"use_rms_norm"`      // bitnet
	Plain      []string `json:"modules_to_not_convert"`
	Groups     map[string]struct {
		Weights struct {
			Block []int `json:"block_structure"`
		} `json:"weights"`
	} `json:"config_groups"` // compressed-tensors
	Sparsity struct {
		Format string `json:"format"`
	} `json:"sparsity_config"`
	Transform struct {
		Groups map[string]json.RawMessage `json:"config_groups"`
	} `json:"transform_config"`
}

// badField makes the fault of a field of quantization_config.
type badField func(name, expected, found string, args ...any) error

// quantMethod is how one quant_method keeps a linear layer.
type quantMethod struct {
	check func(*Quantization, badField) error
	mark  []string // what the name of one tensor of each quantized layer ends with
	layer func(c *Checkpoint, q *Quantization, name string) (*derived, error)
}

func quantMethods() map[string]quantMethod {
	return map[string]quantMethod{
		"gptq":               {checkGPTQ, []string{".qweight"}, (*Checkpoint).packedLayer},
		"awq":                {checkAWQ, []string{".qweight"}, (*Checkpoint).packedLayer},
		"auto-round":         {checkAutoRound, []string{".qweight"}, (*Checkpoint).packedLayer},
		"fp8":                {checkFP8, []string{".weight_scale_inv", ".weight_scale"}, (*Checkpoint).scaledLayer},
		"compressed-tensors": {checkCompressed, []string{".weight_scale"}, (*Checkpoint).scaledLayer},
		"bitsandbytes":       {nil, []string{".weight.absmax", ".SCB"}, (*Checkpoint).bitsandbytesLayer},
		"mxfp4":              {nil, []string{"_blocks"}, (*Checkpoint).mxfp4Layer},
		"bitnet":             {checkBitNet, []string{".weight_scale"}, (*Checkpoint).bitNetLayer},
	}
}

// ParseQuantization reads a quantization_config and refuses what no layer can
// be read by. Faults are *FormatError of the file.
func ParseQuantization(file string, raw []byte) (*Quantization, error) {
	var q Quantization
	if err := json.Unmarshal(raw, &q); err != nil {
		return nil, &FormatError{File: file, Name: "quantization_config", Found: JSONFault(err), Expected: "an object with quant_method"}
	}
	bad := func(name, expected, found string, args ...any) error {
		f := fault("quantization_config."+name, expected, found, args...)
		f.File = file
		return f
	}
	method, ok := quantMethods()[q.Method]
	if !ok {
		return nil, bad("quant_method", "one of "+strings.Join(slices.Sorted(maps.Keys(quantMethods())), ", "), "%.40q", q.Method)
	}
	if method.check != nil {
		if err := method.check(&q, bad); err != nil {
			return nil, err
		}
	}
	return &q, nil
}

// deriveQuantized adds the matrices NAME.weight that the tensors of quantized layers stand for, where config.json says that there are
// such.
func (c *Checkpoint) deriveQuantized() error {
	path := filepath.Join(c.dir, configFile)
	raw, err := ReadText(path)
	if errors.Is(err, fs.ErrNotExist) { // the model's reader says so
		return nil
	}
	if err != nil {
		return err
	}
	var config struct {
		Quantization json.RawMessage `json:"quantization_config"`
	}
	if err := json.Unmarshal(PythonJSON(raw), &config); err != nil || len(config.Quantization) == 0 ||
		string(config.Quantization) == "null" {
		return nil //nolint:nilerr // the model's reader says what is wrong with a config.json
	}
	q, err := ParseQuantization(path, config.Quantization)
	if err != nil {
		return err
	}
	method := quantMethods()[q.Method]
	if q.roundsAtLoad() {
		method = rounding
	}
	var names, layers []string
	for _, name := range slices.Sorted(maps.Keys(c.tensors)) {
		for _, mark := range method.mark {
			if layer, ok := strings.CutSuffix(name, mark); ok && !q.leaves(name) {
				names, layers = append(names, name), append(layers, layer)
			}
		}
	}
	all, errs := make([]*derived, len(layers)), make([]error, len(layers))
	var reading sync.WaitGroup
	for core := range runtime.GOMAXPROCS(0) { // each reads all scales and zeros of its layers
		reading.Go(func() {
			for i := core; i < len(layers); i += runtime.GOMAXPROCS(0) {
				all[i], errs[i] = method.layer(c, q, layers[i])
			}
		})
	}
	reading.Wait()
	for i, err := range errs {
		if err != nil {
			return in(c.tensors[names[i]].File, err)
		}
	}
	return c.derive(all)
}

func kindOf(t Tensor) string {
	if t.Type == "" {
		return "no such tensor"
	}
	return fmt.Sprintf("%s %v", t.Type, t.Shape)
}
