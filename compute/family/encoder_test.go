package family

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
)

// bertJSON is a valid configuration.
func bertJSON(architecture string) object {
	return object{
		"architectures": []string{architecture}, "vocab_size": 131, "hidden_size": 48, "intermediate_size": 104, "num_hidden_layers": 2,
		"num_attention_heads": 3, "max_position_embeddings": 100, "pad_token_id": 1,
	}
}

func TestAClassifierHasItsLabels(t *testing.T) {
	const class = "BertForSequenceClassification"
	for name, c := range map[string]struct {
		more object
		want Classifier
	}{
		"none":     {nil, Classifier{[]string{"LABEL_0", "LABEL_1"}, Softmax, Identity}},
		"a number": {object{"num_labels": 1}, Classifier{[]string{"LABEL_0"}, Sigmoid, Sigmoid}},
		"names":    {object{"id2label": object{"1": "b", "0": "a", "2": "c"}}, Classifier{[]string{"a", "b", "c"}, Softmax, Identity}},
		"several": {object{"problem_type": "multi_label_classification"},
			Classifier{[]string{"LABEL_0", "LABEL_1"}, Sigmoid, Identity}},
		"a regressor": {object{"num_labels": 1, "problem_type": "regression"}, Classifier{[]string{"LABEL_0"}, Identity, Sigmoid}},
		"an identity": {object{"num_labels": 1, "sentence_transformers": object{"activation_fn": "torch.nn.modules.linear.Identity"}},
			Classifier{[]string{"LABEL_0"}, Sigmoid, Identity}},
		"older": {object{"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
			Classifier{[]string{"LABEL_0"}, Sigmoid, Identity}},
	} {
		got, err := parse(t, with(bertJSON(class), c.more))
		require.NoError(t, err, name)
		require.Equal(t, c.want, got.Classifier, name)
		require.True(t, got.Encoder)
		require.Equal(t, "BertModel", got.Architecture)
	}
	for want, more := range map[string]object{
		"no label 1 among 2":                   {"id2label": object{"0": "a", "2": "c"}},
		"an object of 1 to 1024 labels":        {"id2label": []string{"a"}},
		"expected single_label_classification": {"problem_type": "other"},
		"Identity or Sigmoid of torch.nn":      {"sbert_ce_default_activation_function": "torch.nn.Tanh"},
		"position_embedding_type":              {"position_embedding_type": "relative_key"},
		"is_decoder":                           {"is_decoder": true},
	} {
		_, err := parse(t, with(bertJSON(class), more))
		require.ErrorContains(t, err, want)
	}
	got, err := parse(t, bertJSON("BertModel"))
	require.NoError(t, err)
	require.Empty(t, got.Classifier)
}

// TestAClassifierOverADecoderGeneratesNothing: it has classes in place of tokens, and takes a whole text at once.
func TestAClassifierOverADecoderGeneratesNothing(t *testing.T) {
	decoder := object{"num_key_value_heads": 1, "id2label": object{"0": "a", "1": "b", "2": "c"}}
	got, err := parse(t, with(bertJSON("LlamaForSequenceClassification"), decoder))
	require.NoError(t, err)
	require.True(t, got.Encoder)
	require.Equal(t, []string{"a", "b", "c"}, got.Classifier.Labels)
	p, err := Build(got, nil)
	require.NoError(t, err)
	require.False(t, p.Generates())
	require.False(t, p.Encoder(), "its attention is causal")
	require.Equal(t, 3, p.Logits())
	got, err = parse(t, with(bertJSON("LlamaForCausalLM"), decoder))
	require.NoError(t, err)
	require.False(t, got.Encoder, "labels of another class do not count")
	p, err = Build(got, nil)
	require.NoError(t, err)
	require.True(t, p.Generates())
}

func TestPositionsOfRobertaFollowThePadding(t *testing.T) {
	got, err := parse(t, bertJSON("XLMRobertaModel"))
	require.NoError(t, err)
	require.Equal(t, 98, got.MaxPositions)
	p, err := Build(got, nil)
	require.NoError(t, err)
	require.Equal(t, 2, p.Ops[0].PositionOffset)
	_, err = parse(t, with(bertJSON("RobertaModel"), object{"max_position_embeddings": 2}))
	require.ErrorContains(t, err, "positions begin after pad_token_id")
}

// TestEncodersHaveTheirPooling builds programs of configurations alone, as `millrace pull` does before a download.
func TestEncodersHaveTheirPooling(t *testing.T) {
	dirs, err := filepath.Glob("../../testdata/encoders/*")
	require.NoError(t, err)
	require.NotEmpty(t, dirs)
	for _, dir := range dirs {
		c, err := LoadConfig(dir)
		require.NoError(t, err)
		p, err := Build(c, nil)
		require.NoError(t, err, dir)
		require.False(t, p.Generates())
		require.Equal(t, max(len(c.Classifier.Labels), 1), p.Logits(), dir)
		if !p.Encoder() { // a classifier over a decoder: over the last token
			require.NotEmpty(t, c.Classifier.Labels, dir)
			continue
		}
		require.Equal(t, model.Groups{Layers: 1, Full: 1}, p.Groups(), dir)
		selects := 0
		for i := range p.Ops {
			op := &p.Ops[i]
			switch op.Kind {
			case model.OpRopeStore, model.OpAttention:
				require.True(t, op.BothWays)
			case model.OpSelectRows:
				selects++
				if c.Classifier.Labels == nil {
					require.Equal(t, c.rowPooling(), op.Pooling, dir)
				}
			}
		}
		require.Positive(t, selects)
	}
}

// TestAnEncoderWithoutFilesHasTheMean has nothing in its folder but the configuration.
func TestAnEncoderWithoutFilesHasTheMean(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"),
		[]byte(`{"model_type":"bert","vocab_size":9,"hidden_size":8,"intermediate_size":8,"num_hidden_layers":1,"num_attention_heads":1}`),
		0o600))
	c, err := LoadConfig(dir)
	require.NoError(t, err)
	require.Equal(t, Pooling{Mode: "mean", Normalize: true}, c.Pooling)
	require.Equal(t, 512, c.MaxPositions)
}

func TestAnEncoderKeepsOneLayerOfKeys(t *testing.T) {
	c, err := LoadConfig("../../testdata/encoders/modernbert")
	require.NoError(t, err)
	p, err := Build(c, nil)
	require.NoError(t, err)
	require.EqualValues(t, 2*48*2, p.KVBytesPerToken(model.BF16Sizes()))
	for i := range p.Ops {
		if op := p.Ops[i]; op.Kind == model.OpAttention {
			rows, seen := 20, 0
			for r := range rows {
				for k := range rows {
					if op.Window == 0 || max(r-k, k-r) < op.Window {
						seen++
					}
				}
			}
			cost := model.Costs(p, model.Prefill(rows), model.BF16Sizes())[i]
			require.EqualValues(t, seen*op.Heads*(4*op.HeadDim+1), cost.Flops, "window %d", op.Window)
		}
	}
}
