package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

func TestAModelIsFoundByAPartOfItsName(t *testing.T) {
	served := func(ids ...string) (models []api.Model) {
		for _, id := range ids {
			models = append(models, api.Model{ID: id})
		}
		return models
	}
	for _, c := range []struct {
		ids  []string
		name string
		want string // "": none
	}{
		{[]string{"Qwen/Qwen3-0.6B"}, "Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"},
		{[]string{"Qwen/Qwen3-0.6B"}, "Qwen3-0.6B", "Qwen/Qwen3-0.6B"},
		{[]string{"Qwen/Qwen3-0.6B"}, "Other/Qwen3-0.6B", ""},
		{[]string{"Qwen/Qwen3-0.6B"}, "Qwen", ""},
		{[]string{"Qwen/Qwen3-0.6B"}, "", ""},
		{[]string{"a/b:Q8_0"}, "a/b:Q8_0", "a/b:Q8_0"},
		{[]string{"a/b:Q8_0"}, "a/b", "a/b:Q8_0"},
		{[]string{"a/b:Q8_0"}, "b:Q8_0", "a/b:Q8_0"},
		{[]string{"a/b:Q8_0"}, "b", "a/b:Q8_0"},
		{[]string{"a/b:Q8_0"}, "a/b:Q4_0", ""},
		{[]string{"tiny"}, "tiny.gguf", "tiny"},
		{[]string{"tiny.gguf"}, "tiny.gguf", "tiny.gguf"},
		{[]string{"a/x", "b/x"}, "x", ""},
		{[]string{"a/x", "x", "b/x"}, "x", "x"},
		{[]string{"a/x:Q8_0", "a/x:Q4_0"}, "a/x:Q4_0", "a/x:Q4_0"},
		{[]string{"a/x:Q8_0", "a/x:Q4_0"}, "a/x", ""},
	} {
		found := api.Find(served(c.ids...), c.name)
		if c.want == "" {
			require.Nil(t, found, "%s of %v", c.name, c.ids)
			continue
		}
		require.NotNil(t, found, "%s of %v", c.name, c.ids)
		require.Equal(t, c.want, found.ID)
	}
}
