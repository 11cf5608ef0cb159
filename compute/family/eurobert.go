package family

import (
	"fmt"

	"github.com/millrace/millrace/compute/model"
)

// euroBERT is EuroBERT.
var euroBERT = family{
	class: "EuroBertModel", also: []string{"EuroBertForSequenceClassification", "EuroBertForMaskedLM"}, kind: "eurobert",
	config: euroBERTConfig,
	gguf: &ggufForm{
		name: "eurobert", keys: map[string]string{"attention.causal": ggufCausal}, spell: (*fields).bothWays,
	},

	models:   "EuroBERT",
	features: "encoder: Llama with attention both ways",
}

func euroBERTConfig(f *fields, c *Config) plan {
	c.encoder(f)
	f.defaults(map[string]any{"rms_norm_eps": 1e-5})
	llamaSizes(f, c, 0, 8192)
	c.attentionBias(f, false)
	c.MLPBias = f.flag(false, "mlp_bias")
	head := &classHead{pooling: model.PoolMean, dense: euroDense}
	switch pooling := f.text("late", "classifier_pooling"); pooling {
	case "bos":
		head.pooling = model.PoolFirst
	case "mean":
	case "late": // a mean of logits is the logits of a mean
		head.late = true
	default:
		f.fault("classifier_pooling", fmt.Sprintf("%.40q", pooling), "bos, mean or late")
	}
	return llamaPlan{encoder: head}
}

// euroDense appends gelu(W x + b), which the classifier reads.
func euroDense(b *builder, in int) (out int) {
	c := b.cfg
	out = b.slot("dense", model.SlotF32, c.Hidden)
	b.atRoot(func() { b.linear("dense", in, out, model.ActGELUErf, b.part("dense", true, c.Hidden, c.Hidden)) })
	return out
}
