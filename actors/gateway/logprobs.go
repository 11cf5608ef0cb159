package gateway

import (
	"github.com/millrace/millrace/api"
)

const (
	// mostLogprobs bounds the log probabilities of a request, with those of alternatives: each takes about a hundred bytes until the
	// request ends.
	mostLogprobs = 1 << 20
	// logprobBlock is the number of log probabilities in a place of the room that the requests of a gateway share.
	logprobBlock = 1 << 10
	// logprobPlaces is that room: two of the largest requests.
	logprobPlaces = 2 * mostLogprobs / logprobBlock
	// bytesPerToken is the usual length of a token of text.
	bytesPerToken = 4
)

// logprobs counts the log probabilities of a request: of each token of its prompt and of its answers, once for each choice.
type logprobs struct {
	choices        int
	prompt, answer int // of a token; 0: none
}

func logprobsOf(r *api.Request) logprobs {
	l := logprobs{choices: r.N, answer: max(r.TopLogprobs, -1) + 1}
	if r.PromptLogprobs != nil {
		l.prompt = 1 + *r.PromptLogprobs
	}
	return l
}

// count returns their number for a prompt and an answer of some tokens.
func (l logprobs) count(prompt, answer int) int {
	return l.choices * (prompt*l.prompt + answer*l.answer)
}

// places estimates the places that a request takes of the room for log probabilities, before its prompt is tokenized.
func (l logprobs) places(r *api.Request) int {
	if l.prompt+l.answer == 0 {
		return 0
	}
	bytes := len(r.Prompt)
	for i := range r.Messages {
		bytes += len(r.Messages[i].Content)
	}
	answer := r.MaxTokens
	if answer == 0 {
		answer = usualAnswer
	}
	n := l.count(len(r.PromptTokens)+bytes/bytesPerToken, answer)
	return min(n, mostLogprobs)/logprobBlock + 1
}

// limit bounds the tokens of each answer by the log probabilities that a request may have. A request that declares more is refused.
func (l logprobs) limit(r *api.Request, prompt, answer int) (int, error) {
	if n := l.count(prompt, max(r.MaxTokens, 1)); n > mostLogprobs {
		return 0,
			api.Invalid("logprobs",
				"%d choices with %d log probabilities for each of %d tokens of the prompt and %d for each of %d tokens of the answer are %d, expected at most %d: request fewer choices, alternatives or tokens",
				l.choices, l.prompt, prompt, l.answer, max(r.MaxTokens, 1), n, mostLogprobs)
	}
	if l.answer == 0 {
		return answer, nil
	}
	return min(answer, (mostLogprobs-l.count(prompt, 0))/(l.choices*l.answer)), nil
}
