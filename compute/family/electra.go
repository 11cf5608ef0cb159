package family

import "github.com/millrace/millrace/compute/model"

// electra is ELECTRA.
var electra = family{
	class: "ElectraModel", also: []string{"ElectraForSequenceClassification", "ElectraForPreTraining", "ElectraForMaskedLM"},
	kind: "electra", config: electraConfig,

	models:   "ELECTRA, the MS MARCO cross-encoder",
	features: "BERT with a token table of its own width (`embedding_size`), classifier with a dense layer and GELU",
}

func electraConfig(f *fields, c *Config) plan {
	p := bertConfig(f, c).(bertPlan)
	p.prefix, p.names.project = "electra.", "embeddings_project"
	if p.embedding = f.integer(128, 1, maxWidth, "embedding_size"); p.embedding == c.Hidden {
		p.embedding = 0 // there is no matrix
	}
	p.dense, p.inEncoder, p.denseActivation = "classifier.dense", false, model.ActGELUErf
	return p
}
