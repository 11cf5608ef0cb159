package family

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/weights"
	"github.com/millrace/millrace/internal/nearest"
)

// family is a kind of models: the checkpoints that are read, and the programs that they become. Each is declared in a file of its own.
type family struct {
	class string // in config.json's architectures: "LlamaForCausalLM"
	// classes of models with images whose text model is this; of an encoder those with other heads
	also    []string
	saved   string                                   // the class of another family that transformers saves the kind as; "": none
	bare    string                                   // the class without an output layer, as embedding models have it; "": not read
	kind    string                                   // model_type of config.json
	spell   func(*fields)                            // brings config.json into the common form; nil: it has it
	config  func(*fields, *Config) plan              // reads config.json; defaults are those of the class in transformers
	tensors func(*Config, *weights.Checkpoint) error // replaces tensors; nil: none
	gguf    *ggufForm                                // nil: its GGUF files are not read

	models, features string // for docs/models.md
}

// plan builds the program of one configuration. Its fields are what only the family has.
type plan interface{ build(*builder) }

// families are all that are served, in the order of the documentation.
func families() []*family {
	return []*family{
		&llama, &deci, &mistral, &qwen2, &qwen3, &phi3, &smollm3, &seedOSS, &ernie45, &glm, &glm4, &exaone4, &granite, &gemma,
		&gemma2, &vaultGemma, &gemma3, &gemma3n, &gemma4, &gemma4Unified, &olmo2, &olmo3, &olmoHybrid, &ministral3, &hunyuan,
		&arcee, &bitNet, &apertus, &apertus15, &graniteSWA, &museGlimmer, &hyperCLOVAX, &nanoChat, &emu3, &molmo2, &phi4Multimodal, &glm4v,
		&helium, &cwm, &ministral, &internlm2, &internLM3, &iquestCoder, &exaone, &minicpm, &baichuan, &qwen, &xverse, &orion,
		&qwen3Next, &qwen35, &qwen35Moe, &laraMini, &lfm2, &lfm2Moe, &lfm3, &bamba, &graniteHybrid, &falconH1, &mamba2LM, &mambaLM,
		&falconMamba, &jamba, &nemotronH, &qwen3Moe, &qwen2Moe, &mixtral, &glm4Moe, &sarvamMoe, &ernie45Moe, &graniteMoe,
		&graniteMoeShared, &graniteMoeSWA, &mellum, &flint, &aria, &mimoV2Flash, &cohere2Moe, &glm4vMoe, &dots1, &exaoneMoe,
		&solarOpen, &ling2, &ling, &deepseekMoE, &deepseekV2, &deepseekV3, &sarvamMLA, &deepseekV32, &glmMoeDsa, &deepseekOCR2,
		&glm4MoeLite, &mistral4, &youtu, &minicpm3, &axk1, &kimiLinear, &gptOss, &llama4, &olmoe, &flexOlmo, &afmoe, &hyV3,
		&minimaxM2, &minimaxM3, &minimaxText, &hunyuanMoe, &phimoe, &starcoder2, &gptneox, &phi, &stablelm, &cohere, &cohere2,
		&cohereCompass, &falcon, &gptj, &gpt2, &gptBigCode, &gptNeo, &opt, &bloom, &olmo, &nemotron, &jais2, &persimmon,
		&gptneoxJapanese, &codeGen, &mpt, &bioGPT, &xglm, &yoco, &bert, &roberta, &xlmRoberta, &modernBERT, &euroBERT, &nomicBERT,
		&distilBERT, &electra, &albert, &camemBERT, &ernie, &megatronBERT, &data2vecText, &robertaPreNorm, &xlmRobertaXL,
	}
}

// find returns the first family for which a predicate holds, nil if there is none.
func find(is func(*family) bool) *family {
	all := families()
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i]
	}
	return nil
}

// Architectures lists the supported names of config.json's "architectures".
func Architectures() []string {
	names := slices.Collect(maps.Keys(wrapped()))
	for _, f := range families() {
		names = append(append(names, f.class), f.also...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// served says what is expected in place of the names of a configuration: the architectures whose names are near, and where all are.
func served(names ...string) string {
	const expected = "an architecture of docs/models.md"
	if len(names) == 0 {
		return expected
	}
	return expected + ", where the nearest are " + strings.Join(nearest.Names(names[0], Architectures(), 3), ", ")
}

// Table is the table of the architectures in docs/models.md.
func Table() string {
	var b strings.Builder
	b.WriteString("| name | models | features |\n|---|---|---|\n")
	for _, f := range families() {
		classes := strings.Join(append([]string{f.class}, f.also...), "`, `")
		b.WriteString("| `" + classes + "` | " + f.models + " | " + f.features + " |\n")
	}
	return b.String()
}

// OpenWeights opens the checkpoint of a configuration, as its family names the tensors. Faults of the files are *weights.FormatError.
func OpenWeights(c *Config) (*weights.Checkpoint, error) {
	if !weights.IsGGUF(c.File) {
		return openFolder(c)
	}
	g, err := weights.OpenGGUF(c.File, ggufLayout)
	if err != nil {
		return nil, err
	}
	if known, _ := ggufFamily(g.Metadata); known != nil && known.gguf.tensors != nil {
		if err := known.gguf.tensors(c, g.Checkpoint); err != nil {
			return nil, errors.Join(err, g.Close())
		}
	}
	return g.Checkpoint, nil
}

func openFolder(c *Config) (*weights.Checkpoint, error) {
	w, err := weights.Open(c.Path())
	if err != nil {
		return nil, err
	}
	known := find(func(f *family) bool { return f.class == c.Architecture })
	if known != nil && known.tensors != nil {
		err = known.tensors(c, w)
	}
	if err = cmp.Or(err, openDense(c, w)); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}
