package sample

import "fmt"

// The bounds of the texts in parameters.
const (
	MaxBadWords     = 256
	MaxBadWordBytes = 256 // of each
	MaxBreakers     = 16
	MaxBreakerBytes = 64 // of each
)

// Texts are the texts in parameters, of which a tokenizer makes TextTokens.
type Texts struct {
	Words    []string // Params.BadWords
	Breakers []string // DRY.Breakers
}

// TextTokens are the tokens of Texts.
type TextTokens struct {
	Words      [][]int32 // each the tokens of a word
	Breaks     []int32   // tokens that contain a breaker, ascending
	LongBreaks [][]int32 // other tokens that contain the beginning of a breaker at their end, and the tokens of its rest
}

// Texts returns the texts of p that need tokens, nil if there are none.
func (p Params) Texts() *Texts {
	t := &Texts{Words: p.BadWords}
	if p.DRY.on() {
		t.Breakers = p.DRY.Breakers
	}
	if len(t.Words)+len(t.Breakers) == 0 {
		return nil
	}
	return t
}

func validateTexts(field string, texts []string, most, longest int) error {
	if len(texts) > most {
		return &ParamError{field, fmt.Sprintf("%d texts", len(texts)), fmt.Sprintf("at most %d", most)}
	}
	for i, text := range texts {
		if text == "" || len(text) > longest {
			return &ParamError{fmt.Sprintf("%s[%d]", field, i), fmt.Sprintf("%d bytes", len(text)), fmt.Sprintf("1 to %d", longest)}
		}
	}
	return nil
}

// ban sets the logits of the tokens that would complete a bad word to -Inf, and keeps what they were in ws.banned.
func (s *Sampler) ban(logits []float32, ws *Scratch) {
	ws.banned = ws.banned[:0]
	none := impossible()
	for _, word := range s.words {
		last := len(word) - 1
		begun := len(s.sequence) - last
		if begun >= s.prompt && hasPrefix(s.sequence[begun:], word[:last]) && logits[word[last]] != none {
			ws.banned = append(ws.banned, bias{word[last], logits[word[last]]})
			logits[word[last]] = none
		}
	}
}

// unban undoes ban. It returns false if there is nothing to undo.
func (ws *Scratch) unban(logits []float32) bool {
	for _, b := range ws.banned {
		logits[b.id] = b.value
	}
	return len(ws.banned) > 0
}
