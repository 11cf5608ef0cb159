package family

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// Classifier is what a checkpoint with a head for classes says of them. The zero value is a model without such a head.
type Classifier struct {
	Labels []string // of the classes, in their order
	// Classify makes probabilities of the logits, Score a score of the one logit of a cross-encoder: Softmax, Sigmoid or Identity.
	Classify, Score string
}

// What becomes of the logits of classes.
const (
	Softmax  = "softmax"
	Sigmoid  = "sigmoid"
	Identity = "identity"
)

// classifierHead ends the names of classes with a head for classes.
const classifierHead = "ForSequenceClassification"

// encoder reads what all encoders have.
func (c *Config) encoder(f *fields) {
	c.Encoder = true
	c.classes(f)
}

// classes reads whether there is a head for classes, and its labels.
func (c *Config) classes(f *fields) {
	if !slices.ContainsFunc(f.texts("architectures"), func(name string) bool { return strings.HasSuffix(name, classifierHead) }) {
		return
	}
	n := f.integer(2, 1, maxLabels, "num_labels") // as transformers has it
	var names map[string]string
	if _, raw := f.get("id2label"); raw != nil {
		if json.Unmarshal(raw, &names) != nil || len(names) == 0 || len(names) > maxLabels {
			f.fault("id2label", excerpt(raw), fmt.Sprintf("an object of 1 to %d labels", maxLabels))
		}
		n = len(names)
	}
	k := &c.Classifier
	k.Labels = make([]string, n)
	for i := range k.Labels {
		k.Labels[i] = fmt.Sprint("LABEL_", i)
		if name, ok := names[strconv.Itoa(i)]; ok {
			k.Labels[i] = name
		} else if names != nil {
			f.fault("id2label", fmt.Sprintf("no label %d among %d", i, n), "one for each number from 0 on")
		}
	}
	k.Classify, k.Score = Softmax, Identity
	if n == 1 {
		k.Classify, k.Score = Sigmoid, Sigmoid
	}
	switch kind := f.text("", "problem_type"); kind {
	case "", "single_label_classification":
	case "multi_label_classification":
		k.Classify = Sigmoid
	case "regression":
		k.Classify = Identity
	default:
		f.fault("problem_type", fmt.Sprintf("%.40q", kind), "single_label_classification, multi_label_classification or regression")
	}
	c.scoreActivation(f)
}

// scoreActivation reads what a cross-encoder of sentence-transformers makes of its logit, in either spelling.
func (c *Config) scoreActivation(f *fields) {
	s := f.object("sentence_transformers")
	name := s.text(f.text("", "sbert_ce_default_activation_function"), "activation_fn")
	f.adopt(s)
	switch name[strings.LastIndexByte(name, '.')+1:] {
	case "":
	case "Identity":
		c.Classifier.Score = Identity
	case "Sigmoid":
		c.Classifier.Score = Sigmoid
	default:
		f.fault("sentence_transformers.activation_fn", fmt.Sprintf("%.60q", name), "Identity or Sigmoid of torch.nn")
	}
}

// rowPooling is the program's part of the pooling of a model's vectors.
func (c *Config) rowPooling() model.RowPooling {
	return map[string]model.RowPooling{"first": model.PoolFirst, "mean": model.PoolMean}[c.Pooling.Mode]
}

// classHead is a head for classes: a dense layer, and the classifier after it.
type classHead struct {
	pooling model.RowPooling
	late    bool                               // the pooling is of what the dense layer gives, else of what it reads
	dense   func(b *builder, in int) (out int) // appends the dense layer's ops
}

// beginEncoder says which rows of a text count, before any op: those of the head, if there is one.
func (b *builder) beginEncoder(h *classHead) {
	b.pooling = b.cfg.rowPooling()
	if len(b.cfg.Classifier.Labels) > 0 {
		b.pooling = h.pooling
	}
}

// encoderEnd appends the ops after an encoder's layers, to the classes of a classifier or, without one, to an output that nobody reads:
// vectors are the hidden states that it is made of. x has the rows, or what selectInLast has selected of them, and table as many columns.
// norm, which may be nil, appends the model's last norm from one slot to another.
func (b *builder) encoderEnd(x, table int, norm func(in, out int), h *classHead) {
	c := b.cfg
	b.layer = model.None
	if norm != nil {
		normed := b.slot("states", model.SlotF32, c.Hidden)
		norm(x, normed)
		x = normed
	}
	if len(c.Classifier.Labels) == 0 {
		x, table = b.denseLayers(b.pool(x), table)
		one := model.Part{Weight: table, Bias: model.None, Rows: 1, Block: 1, Stride: 1}
		b.program.Classes = 1
		b.linear("unused", x, b.slot("unused", model.SlotF32, 1), model.ActNone, one)
		return
	}
	if !h.late {
		x = b.pool(x)
	}
	if x = h.dense(b, x); h.late {
		x = b.pool(x)
	}
	name := "classifier"
	if _, ok := b.find("classifier.out_proj.weight"); ok {
		name = "classifier.out_proj"
	}
	b.classes(x, name, true)
}

// denseLayers appends those after the pooling. It returns their result, and a matrix of as many columns: the token table, where it is one.
func (b *builder) denseLayers(x, table int) (result, matrix int) {
	layers := b.cfg.Pooling.Dense
	b.atRoot(func() {
		for i, d := range layers {
			part, out := b.part(d.linear(), d.Bias, d.Out, d.In), b.slot(fmt.Sprint("dense.", i), model.SlotF32, d.Out)
			if d.Tanh {
				b.tanh("dense", x, out, part)
			} else {
				b.linear("dense", x, out, model.ActNone, part)
			}
			x = out
		}
		if d := b.cfg.lastDense(); d != nil {
			table = b.matrices(d.linear()+denseBack, 1, d.In, d.Out)
		}
	})
	return x, table
}

// denseBack ends the name of a dense layer's matrix with rows for columns, which OpenWeights adds.
const denseBack = ".back"

// linear is before the names of the layer's tensors.
func (d *Dense) linear() string { return d.Folder + "/linear" }

// lastDense is the last dense layer, if its vectors are wider or shorter than a hidden state; else nil.
func (c *Config) lastDense() *Dense {
	n := len(c.Pooling.Dense)
	if n == 0 || c.Pooling.Dense[n-1].Out == c.Hidden {
		return nil
	}
	return &c.Pooling.Dense[n-1]
}

// openDense adds the tensors of dense layers to a checkpoint.
func openDense(c *Config, w *weights.Checkpoint) error {
	for _, d := range c.Pooling.Dense {
		if err := w.Include(d.Folder); err != nil {
			return err
		}
	}
	if d := c.lastDense(); d != nil {
		return w.TransposeParts(map[string]string{d.linear() + ".weight": d.linear() + denseBack}, 1, int64(d.Out))
	}
	return nil
}

// tanh appends y = tanh(part . x + bias).
func (b *builder) tanh(name string, in, out int, part model.Part) {
	b.linear(name, in, out, model.ActSoftcap, part)
	b.last().ActA = 1 // a tanh(x / a)
}

// classes appends the last op of a model with a head for classes: the head's last matrix.
func (b *builder) classes(in int, name string, bias bool) {
	n := len(b.cfg.Classifier.Labels)
	b.program.Classes = n
	b.atRoot(func() {
		b.linear("classes", in, b.slot("classes", model.SlotF32, n), model.ActNone, b.part(name, bias, n, b.program.Slots[in].Width))
	})
}

// atRoot calls f with tensors' names that have no prefix.
func (b *builder) atRoot(f func()) {
	prefix := b.prefix
	b.prefix = ""
	f()
	b.prefix = prefix
}

// pool takes the mean of a text's rows, where the pooling is that. Others have selected rows before.
func (b *builder) pool(x int) int {
	if b.pooling != model.PoolMean {
		return x
	}
	in := b.program.Slots[x]
	out := b.slot("pooled", in.Type, in.Width)
	op := newOp(model.OpSelectRows, "pool", x, out)
	op.Pooling = b.pooling
	b.op(op)
	return out
}

// anyNorm appends a layer norm with a bias or without one, whose tensors may have the names of TensorFlow.
func (b *builder) anyNorm(name, tensor string, bias bool, in, out int) {
	width := b.program.Slots[in].Width
	op := newOp(model.OpNorm, name, in, out)
	op.Norm, op.Eps = model.NormLayer, b.cfg.Eps
	op.Weight = b.tensor(b.either(tensor+".weight", tensor+".gamma"), width)
	if bias {
		op.Bias = b.tensor(b.either(tensor+".bias", tensor+".beta"), width)
	}
	b.op(op)
}
