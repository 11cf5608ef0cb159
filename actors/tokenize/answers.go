package tokenize

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tokenizer"
)

// tailTokens is how many tokens of a prompt are encoded again together with each answer: enough to find whether they join.
const tailTokens = 16

// answerTokens returns the tokens that texts become as the beginning of the answer to a chat. prompt is the ids of the chat. Errors are
// *api.Error.
func answerTokens(tok *tokenizer.Tokenizer, r *api.TokenizeRequest, prompt []int32, answers []string) ([][]int32, error) {
	from := len(prompt)
	for from > 0 && len(prompt)-from < tailTokens && !tok.IsSpecial(prompt[from-1]) {
		from--
	}
	tail := prompt[from:]
	before, err := tok.Decode(tail, false)
	if err != nil {
		return nil, api.Invalid("messages", "%v", err)
	}
	lead := opening(tok, r)
	out := make([][]int32, len(answers))
	for i, text := range answers {
		if out[i], err = after(tok, tail, before, lead+text); err != nil {
			return nil, api.Invalid("questions", "the answer %s: %v", api.Quote(text), err)
		}
		if len(out[i]) == 0 {
			return nil, api.Invalid("questions", "the answer %s has no tokens, expected at least one", api.Quote(text))
		}
	}
	return out, nil
}

// after returns the tokens of a text after the last tokens of a prompt, which are those of the text before. Where the two texts join in one
// token, and the prompt has ended before it, or where the text before has other tokens without the rest of the prompt, the tokens are those
// of the text within another one.
func after(tok *tokenizer.Tokenizer, tail []int32, before, text string) ([]int32, error) {
	if len(tail) == 0 {
		return tok.Encode(text, false)
	}
	both, err := tok.Encode(before+text, false)
	if err != nil {
		return nil, err
	}
	if len(both) > len(tail) && slices.Equal(both[:len(tail)], tail) {
		return both[len(tail):], nil
	}
	return continuation(tok, text)
}

// opening returns what a chat template writes between the end of a prompt and an answer: a space, or the header of a channel. "" is
// nothing, or that the end of a prompt is no beginning of an answered one, as where it says that there is no reasoning.
func opening(tok *tokenizer.Tokenizer, r *api.TokenizeRequest) string {
	const text = "x"
	chat := tokenizer.Chat{Messages: []api.Message{{Role: "user", Content: text}}, Args: r.TemplateArgs, Clock: r.Clock,
		AddGenerationPrompt: true}
	open, err := render(tok, chat)
	if err != nil {
		return ""
	}
	chat.Messages = append(chat.Messages, api.Message{Role: "assistant", Content: text})
	chat.AddGenerationPrompt, chat.ContinueFinal = false, true
	answered, err := render(tok, chat)
	if err != nil {
		return ""
	}
	rest, _ := strings.CutPrefix(answered.Text, open.Text)
	lead, ok := strings.CutSuffix(rest, text)
	if !ok || rest == answered.Text {
		return ""
	}
	return lead
}
