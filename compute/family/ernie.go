package family

import "github.com/millrace/millrace/compute/weights"

// ernie is ERNIE, the encoder.
var ernie = family{
	class: "ErnieModel", also: []string{"ErnieForSequenceClassification", "ErnieForMaskedLM", "ErnieForPreTraining"}, kind: "ernie",
	config:  ernieConfig,
	tensors: ernieTensors,

	models:   "ERNIE 1 to 3 (encoders)",
	features: "BERT, with the embedding of the first task (`use_task_id`)",
}

func ernieConfig(f *fields, c *Config) plan {
	f.set("type_vocab_size", min(f.integer(2, 1, maxVocab, "type_vocab_size"), ernieTypes))
	p := bertConfig(f, c).(bertPlan)
	p.prefix = "ernie."
	p.task = f.flag(false, "use_task_id")
	return p
}

// ernieTypes are the types of tokens that texts have, of those that the table has.
const ernieTypes = 2

// ernieTensors keeps the rows of these types, and that of the first task, which texts have.
func ernieTensors(_ *Config, w *weights.Checkpoint) error {
	shorten(w, "token_type_embeddings.weight", ernieTypes)
	shorten(w, "task_type_embeddings.weight", 1)
	return nil
}
