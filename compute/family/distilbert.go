package family

import "github.com/millrace/millrace/compute/model"

// distilBERT is DistilBERT.
var distilBERT = family{
	class: "DistilBertModel", also: []string{"DistilBertForSequenceClassification", "DistilBertForMaskedLM"}, kind: "distilbert",
	spell:  distilSpell,
	config: distilConfig,

	models:   "DistilBERT, DistilBERT's sentence encoders and classifiers (SST-2)",
	features: "BERT without types of tokens, classifier with a dense layer and ReLU",
}

// distilSpell gives members the names of BERT, and sets the defaults of DistilBertConfig.
func distilSpell(f *fields) {
	f.prefer(map[string]string{"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
		"hidden_dim": "intermediate_size", "activation": "hidden_act"})
	f.sizes(30522, 768, 3072, 6, 12)
}

func distilConfig(f *fields, c *Config) plan {
	p := bertConfig(f, c).(bertPlan)
	p.prefix, p.types = "distilbert.", 0
	p.dense, p.inEncoder, p.denseActivation = "pre_classifier", false, model.ActReLU
	p.names = bertNames{
		layers: "transformer.layer.", q: "attention.q_lin", k: "attention.k_lin", v: "attention.v_lin", out: "attention.out_lin",
		attnNorm: "sa_layer_norm", up: "ffn.lin1", down: "ffn.lin2", mlpNorm: "output_layer_norm", embedNorm: bertOwnNames.embedNorm,
	}
	return p
}
