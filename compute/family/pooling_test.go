package family

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	transformer = `{"idx":0,"name":"0","path":"","type":"sentence_transformers.models.Transformer"}`
	pooling     = `{"idx":1,"name":"1","path":"1_Pooling","type":"sentence_transformers.models.Pooling"}`
	normalize   = `{"idx":2,"name":"2","path":"2_Normalize","type":"sentence_transformers.models.Normalize"}`
	dense       = `{"idx":3,"name":"3","path":"3_Dense","type":"sentence_transformers.models.Dense"}`
)

// poolingDir is a directory with these files; "" is none.
func poolingDir(t *testing.T, modules, config string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "1_Pooling"), 0o700))
	for name, text := range map[string]string{"modules.json": modules, "1_Pooling/config.json": config} {
		if text != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
	}
	return dir
}

func TestPoolingIsWhatTheFilesSay(t *testing.T) {
	for name, c := range map[string]struct {
		modules, config string
		want            Pooling
	}{
		"no files": {"", "", Pooling{Mode: "last", Normalize: true}},
		"flags, last": {"[" + transformer + "," + pooling + "," + normalize + "]",
			`{"pooling_mode_lasttoken":true,"pooling_mode_mean_tokens":false}`, Pooling{Mode: "last", Normalize: true, Named: true}},
		"flags, mean": {"[" + transformer + "," + pooling + "]", `{"word_embedding_dimension":8,"pooling_mode_mean_tokens":true}`,
			Pooling{Mode: "mean", Named: true}},
		"a name": {"[" + pooling + "]", `{"pooling_mode":"mean"}`, Pooling{Mode: "mean", Named: true}},
		"another": {"[" + pooling + "]", `{"pooling_mode_cls_token":true}`,
			Pooling{Mode: "last", Named: true, Problem: "the pooling cls_token of 1_Pooling"}},
		"a dense module": {"[" + pooling + "," + dense + "]", `{"pooling_mode":"lasttoken"}`,
			Pooling{Mode: "last", Named: true, Problem: "the module sentence_transformers.models.Dense of modules.json"}},
		"no configuration": {"[" + transformer + "]", "", Pooling{Mode: "last", Named: true}},
	} {
		config := Config{Pooling: defaultPooling(false)}
		require.NoError(t, config.readPooling(poolingDir(t, c.modules, c.config)), name)
		require.Equal(t, c.want, config.Pooling, name)
	}
	for name, dir := range map[string]string{
		"JSON as sentence-transformers writes it": poolingDir(t, "{", ""),
		"the configuration of the pooling":        poolingDir(t, "["+pooling+"]", ""),
		"a folder of the model's directory":       poolingDir(t, `[{"path":"../other","type":"x.Pooling"}]`, ""),
	} {
		require.ErrorContains(t, new(Config).readPooling(dir), name)
	}
}

func TestAnEncoderHasThePoolingOfItsFirstToken(t *testing.T) {
	config := Config{Encoder: true, Pooling: defaultPooling(true)}
	require.Equal(t, Pooling{Mode: "mean", Normalize: true}, config.Pooling, "as sentence-transformers without files")
	require.NoError(t, config.readPooling(poolingDir(t, "["+pooling+"]", `{"pooling_mode_cls_token":true}`)))
	require.Equal(t, Pooling{Mode: "first", Named: true}, config.Pooling)
}

func TestDenseLayersFollowThePoolingOfAnEncoder(t *testing.T) {
	read := func(modules, layer string) (Pooling, error) {
		dir := poolingDir(t, modules, `{"pooling_mode_mean_tokens":true}`)
		require.NoError(t, os.Mkdir(filepath.Join(dir, "3_Dense"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "3_Dense", "config.json"), []byte(layer), 0o600))
		config := Config{Encoder: true, Hidden: 8}
		err := config.readPooling(dir)
		return config.Pooling, err
	}
	const after, identity = "[" + pooling + "," + dense + "," + normalize + "]",
		`{"in_features":8,"out_features":5,"bias":false,"activation_function":"torch.nn.modules.linear.Identity"}`
	p, err := read(after, identity)
	require.NoError(t, err)
	require.Equal(t, Pooling{Mode: "mean", Normalize: true, Named: true, Dense: []Dense{{Folder: "3_Dense", In: 8, Out: 5}}}, p)
	p, err = read(after, `{"in_features":8,"out_features":5}`)
	require.NoError(t, err)
	require.Equal(t, []Dense{{Folder: "3_Dense", In: 8, Out: 5, Bias: true, Tanh: true}}, p.Dense, "as the class has it")
	for want, c := range map[string][2]string{
		"the activation torch.nn.ReLU of 3_Dense": {after,
			`{"in_features":8,"out_features":5,"activation_function":"torch.nn.ReLU"}`},
		"the module sentence_transformers.models.Dense of modules.json":  {"[" + pooling + "," + normalize + "," + dense + "]", identity},
		"the module sentence_transformers.models.Dense of modules.json ": {"[" + dense + "," + pooling + "]", identity},
	} {
		p, err := read(c[0], c[1])
		require.NoError(t, err)
		require.Equal(t, strings.TrimSpace(want), p.Problem)
		require.Empty(t, p.Dense)
	}
	_, err = read(after, `{"in_features":9,"out_features":5}`)
	require.ErrorContains(t, err, "in_features: found 9, expected 8, the width of the vector before it")
}

func TestPromptsAreThoseOfTheFiles(t *testing.T) {
	read := func(prompts, pool string) Pooling {
		dir := poolingDir(t, "["+pooling+"]", pool)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config_sentence_transformers.json"), []byte(prompts), 0o600))
		config := Config{Encoder: true}
		require.NoError(t, config.readPooling(dir))
		return config.Pooling
	}
	const mean = `{"pooling_mode_mean_tokens":true}`
	p := read(`{"prompts":{"query":"query: ","document":""},"default_prompt_name":"query"}`, mean)
	require.Equal(t, map[string]string{"query": "query: "}, p.Prompts)
	require.Equal(t, "query", p.Default)
	p = read(`{"prompts":{"query":"q"},"default_prompt_name":null}`, mean)
	require.Empty(t, p.Default)
	require.Nil(t, read(`{"prompts":{"document":""},"default_prompt_name":"document"}`, mean).Prompts)
	require.Equal(t, "a pooling without the tokens of the prompt in 1_Pooling",
		read(`{"prompts":{"query":"q"}}`, `{"pooling_mode_mean_tokens":true,"include_prompt":false}`).Problem)
	require.Empty(t, read(`{}`, `{"pooling_mode_mean_tokens":true,"include_prompt":false}`).Problem, "there is no prompt")
}
