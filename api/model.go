package api

import (
	"time"

	"github.com/millrace/millrace/compute/sample"
)

// Model describes a served model. Its facts travel as they are: a tokenize process and a worker put theirs into their beats, and a
// gateway joins them.
type Model struct {
	ID string
	TextFacts
	WeightFacts
}

// TextFacts is what the files of a model's tokenizer say.
type TextFacts struct {
	EOS []int32 `json:"eos"` // the tokens that end an answer
	// Format is of reasoning and tool calls, as package tools names it; "": not known.
	Format string `json:"format,omitempty"`
	// Special are the ids of the tokens by which Format marks reasoning and calls, as far as they are special.
	Special map[string]int32 `json:"special,omitempty"`
	// Infill is the texts before a prompt, between it and its suffix, and after that; nil: the model fills no gaps.
	Infill []string `json:"infill,omitempty"`
	Think  []int32  `json:"think,omitempty"` // the tokens that begin and end Format's reasoning, -1 for none; nil: no token ends it
	Judge  []int32  `json:"judge,omitempty"` // the tokens "no" and "yes", of a model with a chat template; nil: it has none
}

// WeightFacts is what the process that runs a model knows of it.
type WeightFacts struct {
	Created       time.Time     `json:"created"`
	ContextLength int           `json:"context"`             // of the longest sequence, in tokens
	Shortened     string        `json:"shortened,omitempty"` // why ContextLength is less than what the model is made for; "": it is not
	Vocab         int           `json:"vocab"`
	Sampling      sample.Params `json:"sampling"` // defaults of a request; the zero value means sample.Default()
	Embedding     Embedding     `json:"embedding"`
	// Description is for people and for clients that show or choose models.
	Description Description `json:"description,omitzero"`
}

// Description says what a model's files are. The zero value of a field means that it is not known, as of a worker of an earlier version.
type Description struct {
	Architecture string `json:"architecture,omitempty"` // as GGUF names it: "llama", "qwen3"
	Format       string `json:"format,omitempty"`       // of its files: "safetensors", "gguf", "pytorch"
	Weights      string `json:"weights,omitempty"`      // what the weights are kept as: "bf16", "int8"
	// Digest is the SHA-256 of its weights, program and text, in hexadecimal: equal in each process with the same files and settings.
	Digest      string `json:"digest,omitempty"`
	Parameters  int64  `json:"parameters,omitempty"`
	Bytes       int64  `json:"bytes,omitempty"` // of the weights in memory
	Layers      int    `json:"layers,omitempty"`
	Heads       int    `json:"heads,omitempty"` // of queries
	KVHeads     int    `json:"kv_heads,omitempty"`
	Hidden      int    `json:"hidden,omitempty"` // width of a hidden state
	FeedForward int    `json:"feed_forward,omitempty"`
	Vocab       int    `json:"vocab,omitempty"`
	GPU         bool   `json:"gpu,omitempty"` // its weights are in the memory of a GPU
}

// Embedding is how a model's hidden states become a vector for a text.
type Embedding struct {
	Width     int     `json:"width"`               // of a vector; 0: the workers make none
	Pooling   Pooling `json:"pooling"`             // PoolLast or PoolMean
	Normalize bool    `json:"normalize,omitempty"` // vectors have length 1
	Named     bool    `json:"named,omitempty"`     // the model's files say so; false: they say nothing, and the last token counts
	Problem   string  `json:"problem,omitempty"`   // what the files ask for that is not served; "": nothing

	Prompts map[string]string `json:"prompts,omitempty"` // texts before a text, by their names
	Default string            `json:"default,omitempty"` // the prompt of a text for which none is named; "": none

	// Encoder says that there is no generation: the model has a whole text in one step, of Rows tokens at most.
	Encoder bool `json:"encoder,omitempty"`
	Rows    int  `json:"rows,omitempty"`
	// Classes are those of a model with a head for them, which makes no vectors.
	Classes
}

// Classes are the classes of a model with a head for them. The zero value is a model without such a head.
type Classes struct {
	Labels []string `json:"labels,omitempty"` // in their order
	// Classify makes probabilities of the logits, and Score a score of the only one: "softmax", "sigmoid" or "identity".
	Classify string `json:"classify,omitempty"`
	Score    string `json:"score,omitempty"`
}
