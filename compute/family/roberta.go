package family

// camemBERT is CamemBERT.
var camemBERT = family{
	class: "CamembertModel", also: []string{"CamembertForSequenceClassification", "CamembertForMaskedLM"}, kind: "camembert",
	config: robertaConfig,

	models:   "CamemBERT, Sentence-CamemBERT, its cross-encoders",
	features: "as RoBERTa",
}

// data2vecText is Data2Vec for texts.
var data2vecText = family{
	class: "Data2VecTextModel", also: []string{"Data2VecTextForSequenceClassification", "Data2VecTextForMaskedLM"}, kind: "data2vec-text",
	config: func(f *fields, c *Config) plan {
		p := robertaConfig(f, c).(bertPlan)
		p.prefix = "data2vec_text."
		return p
	},

	models:   "Data2Vec (text)",
	features: "as RoBERTa",
}

// robertaPreNorm is RoBERTa with norms before attention and MLP.
var robertaPreNorm = family{
	class: "RobertaPreLayerNormModel", also: []string{"RobertaPreLayerNormForSequenceClassification", "RobertaPreLayerNormForMaskedLM"},
	kind: "roberta-prelayernorm",
	config: func(f *fields, c *Config) plan {
		p := robertaConfig(f, c).(bertPlan)
		p.prefix = "roberta_prelayernorm."
		p.names.attnNorm, p.names.mlpNorm, p.names.final = "attention.LayerNorm", "intermediate.LayerNorm", "LayerNorm"
		return p
	},

	models:   "Efficient MLM RoBERTa",
	features: "as RoBERTa, norms before attention and MLP",
}

// xlmRobertaXL is XLM-RoBERTa XL and XXL.
var xlmRobertaXL = family{
	class: "XLMRobertaXLModel", also: []string{"XLMRobertaXLForSequenceClassification", "XLMRobertaXLForMaskedLM"}, kind: "xlm-roberta-xl",
	config: func(f *fields, c *Config) plan {
		f.defaults(map[string]any{"layer_norm_eps": 1e-5, "type_vocab_size": 1, "max_position_embeddings": 514})
		p := robertaConfig(f, c).(bertPlan)
		p.names.attnNorm, p.names.mlpNorm, p.names.final, p.names.embedNorm = "attention.self_attn_layer_norm", "LayerNorm",
			"encoder.LayerNorm", ""
		return p
	},

	models:   "XLM-RoBERTa XL and XXL",
	features: "as RoBERTa, norms before attention and MLP, none of the embedding",
}

// megatronBERT is NVIDIA's BERT.
var megatronBERT = family{
	class: "MegatronBertModel",
	also:  []string{"MegatronBertForSequenceClassification", "MegatronBertForMaskedLM", "MegatronBertForPreTraining"},
	kind:  "megatron-bert",
	config: func(f *fields, c *Config) plan {
		p := bertConfig(f, c).(bertPlan)
		p.names.attnNorm, p.names.mlpNorm, p.names.final, p.names.embedNorm = "attention.ln", "ln", "encoder.ln", ""
		return p
	},

	models:   "Megatron BERT 345M",
	features: "BERT with norms before attention and MLP, none of the embedding",
}
