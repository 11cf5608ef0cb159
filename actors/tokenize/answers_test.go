package tokenize

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tracing"
)

// TestTheTokensOfAnAnswerFollowThePrompt: their text is what the template writes, and a whole text that begins with the prompt's tokens has
// them.
func TestTheTokensOfAnAnswerFollowThePrompt(t *testing.T) {
	const channels = "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}<final>{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
	const closed = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]<think></think>{% endif %}"
	named := strings.NewReplacer("bos_token", "'<s>'", "eos_token", "'</s>'") // which the vocabularies do not say
	templates := map[string]string{channels: "<final>", closed: ""}
	for name, lead := range map[string]string{"chatml": "", "gemma3": "", "llama2": " ", "llama3": "", "mistral": " ", "qwen3": "",
		"zephyr": ""} {
		source, err := os.ReadFile("../../testdata/templates/" + name + ".jinja")
		require.NoError(t, err)
		templates[named.Replace(string(source))] = lead
	}
	answers := []string{"yes", "no", "New York", "10", "é"}
	for _, vocabulary := range append([]string{"../models/tiny-chat"}, tokenizers...) {
		for template, lead := range templates {
			tok := vocabularyWithTemplate(t, "../../testdata/"+vocabulary, template)
			r := &api.TokenizeRequest{Messages: []api.Message{{Role: "user", Content: "Is it? yes or no"}},
				TemplateArgs: map[string]any{"enable_thinking": false}}
			prompt, _, err := encode(tok, r, 0)
			require.NoError(t, err)
			before, err := tok.Decode(prompt, false)
			require.NoError(t, err)
			found, err := answerTokens(tok, r, prompt, answers)
			require.NoError(t, err)
			for i, text := range answers {
				require.NotEmpty(t, found[i])
				whole, err := tok.Encode(before+lead+text, false)
				require.NoError(t, err)
				if len(whole) > len(prompt) && slices.Equal(whole[:len(prompt)], prompt) {
					require.Equal(t, whole[len(prompt):], found[i], "%s: %q after %q", vocabulary, text, before)
				}
				if tok.ByteLevel() {
					after, err := tok.Decode(found[i], false)
					require.NoError(t, err)
					require.Equal(t, lead+text, after, "%s: after %q", vocabulary, before)
				}
			}
		}
	}
}

func TestAnswersWithoutTokensAreRefused(t *testing.T) {
	a := &tokenizerActor{Config: &Config{Tokenizer: withTemplate(t, "{{ messages[0].content }}"), Longest: func() int { return 0 },
		Tracer: tracing.Off()}}
	m := &msg.Tokenize{Input: &api.TokenizeRequest{Messages: []api.Message{{Role: "user", Content: "a"}}}, Answers: []string{"yes", ""}}
	answered := a.tokenize(m)
	require.ErrorContains(t, answered.Err, `the answer "" has no tokens`)
	m.Answers = []string{"yes", "no"}
	answered = a.tokenize(m)
	require.NoError(t, answered.Err)
	require.Len(t, answered.Answers, 2)
}
