package calls_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"sync"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
)

// word returns a token and its text. They depend on the seed, the prompt, the choice and the position
// only, as in real sampling.
func word(r *api.Request, choice, pos int) (int32, string) {
	h := fnv.New32a()
	fmt.Fprint(h, r.Sampling.Seed, r.Prompt, choice, pos)
	v := h.Sum32()
	if v%5 == 0 {
		return int32(v >> 1), "" // part of a character
	}
	return int32(v >> 1), fmt.Sprintf(" %04x", v&0xffff)
}

// gate stops engines at a position of each answer.
type gate struct {
	mu    sync.Mutex
	limit int
	moved chan struct{}
}

func newGate(limit int) *gate { return &gate{limit: limit, moved: make(chan struct{})} }

func (g *gate) open(limit int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limit = limit
	close(g.moved)
	g.moved = make(chan struct{})
}

// wait waits until pos may be computed. It returns false if the stream was closed first.
func (g *gate) wait(pos int, closed <-chan struct{}) bool {
	for {
		g.mu.Lock()
		limit, moved := g.limit, g.moved
		g.mu.Unlock()
		if pos < limit {
			return true
		}
		select {
		case <-moved:
		case <-closed:
			return false
		}
	}
}

// deterministic returns an engine that answers with r.MaxTokens tokens for each choice, and continues
// after the tokens that a request has already. A beam search answers at its end.
func deterministic(g *gate) *apitest.Engine {
	return apitest.New(func(r *api.Request, s *apitest.Stream) {
		at := make([]int, r.N)
		open := r.N
		for i := range at {
			if r.Takeover != nil {
				at[i] = len(r.Takeover.Choices[i].Tokens)
				if r.Takeover.Choices[i].Finish != api.FinishNone {
					at[i] = -1
					open--
				}
			}
		}
		for open > 0 {
			for c := range at {
				if at[c] < 0 {
					continue
				}
				if r.Beams == nil && !g.wait(at[c], s.Closed()) {
					return
				}
				id, text := word(r, c, at[c])
				ev := api.Event{Choice: c, Text: text, Tokens: []int32{id}}
				if r.TopLogprobs >= 0 {
					ev.Logprobs = []api.TokenLogprob{apitest.Logprob(id, text, r.TopLogprobs)}
				}
				at[c]++
				if at[c] == r.MaxTokens-c { // choices end at different places
					ev.Finish = api.FinishLength
					at[c] = -1
					if open--; open == 0 {
						ev.Done = true
						ev.Usage = &api.Usage{PromptTokens: 7, CompletionTokens: r.N*r.MaxTokens - r.N*(r.N-1)/2}
					}
				}
				if !s.Send(ev) {
					return
				}
			}
		}
	})
}

// tenantToken computes a tenant's token in subjects as another program would.
func tenantToken(tenant string) string {
	sum := sha256.Sum256([]byte(tenant))
	return hex.EncodeToString(sum[:])[:20]
}
