package family

import "fmt"

// albert is ALBERT.
var albert = family{
	class: "AlbertModel", also: []string{"AlbertForSequenceClassification", "AlbertForMaskedLM", "AlbertForPreTraining"}, kind: "albert",
	config: albertConfig,

	models:   "ALBERT 1 and 2, paraphrase-albert",
	features: "BERT with a token table of its own width (`embedding_size`), whose layers share their weights by `num_hidden_groups` and `inner_group_num`",
}

func albertConfig(f *fields, c *Config) plan {
	f.defaults(map[string]any{"hidden_act": "gelu_new"})
	p := bertConfig(f, c).(bertPlan)
	p.prefix, p.dense = "albert.", "pooler"
	p.embedding = f.integer(128, 1, maxWidth, "embedding_size")
	p.names = bertNames{
		q: "attention.query", k: "attention.key", v: "attention.value", out: "attention.dense", attnNorm: "attention.LayerNorm",
		up: "ffn", down: "ffn_output", mlpNorm: "full_layer_layer_norm", embedNorm: bertOwnNames.embedNorm,
		project: "encoder.embedding_hidden_mapping_in",
	}
	steps := c.Layers
	groups, inner := f.integer(1, 1, max(steps, 1), "num_hidden_groups"), f.integer(1, 1, maxLayers/max(steps, 1), "inner_group_num")
	c.Layers *= inner
	p.layer = func(i int) string {
		group := int(float64(i/inner) / (float64(steps) / float64(groups))) // as AlbertTransformer rounds it
		return fmt.Sprintf("encoder.albert_layer_groups.%d.albert_layers.%d.", group, i%inner)
	}
	return p
}
