package prefix

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/kvmgr"
)

// end follows the blocks of each prompt. A cache always computes the last token of a prompt; here it is no block.
const end = -1

// Replay returns the share, 0 to 1, of the trace's blocks that a cache of the given number of blocks has when their prompt
// arrives. worth orders evictions. A prompt that is larger than the cache hits nothing.
func (t Trace) Replay(blocks int, worth kvmgr.Worth) (float64, error) {
	// A slab is a block, and a token is its id. A sequence reserves one slab more, for its end, and does not lease it.
	m, err := kvmgr.New(kvmgr.Config{Slabs: blocks, Spec: kvmgr.NewSpec(1, kvmgr.Full{}), Worth: worth})
	if err != nil {
		return 0, err
	}
	hits, all := 0, 0
	for i, prompt := range t {
		found, err := serve(m, kvmgr.Seq(i), prompt)
		if err != nil {
			return 0, fmt.Errorf("prompt %d: %w", i, err)
		}
		hits += found
		all += len(prompt)
	}
	return float64(hits) / float64(all), m.Check()
}

// serve runs a prompt from its arrival to its end, and returns how many of its blocks were cached.
func serve(m *kvmgr.Manager, seq kvmgr.Seq, prompt []int32) (hits int, err error) {
	hit, err := m.ReservePrompt(seq, kvmgr.Declared(len(prompt)+1), kvmgr.Prompt{Tokens: append(slices.Clip(prompt), end)})
	if errors.Is(err, kvmgr.ErrNeverFits) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if _, err := m.Lease(seq, len(prompt)); err != nil {
		return 0, err
	}
	if err := m.Commit(seq, prompt, false); err != nil {
		return 0, err
	}
	_, err = m.Release(seq)
	return hit.Tokens, err
}

// oracle returns the worth of Belady's algorithm: the next use that is the furthest away is evicted first.
func (t Trace) oracle() kvmgr.Worth {
	uses := make(map[int32][]int64) // of each block: its prompts, counted from 1, in order
	for i, prompt := range t {
		for _, block := range prompt {
			uses[block] = append(uses[block], int64(i+1))
		}
	}
	return func(u kvmgr.Use) int64 {
		of := uses[u.Tokens[0]]
		next, _ := slices.BinarySearch(of, u.Last+1)
		if next == len(of) {
			return math.MinInt64
		}
		return -of[next]
	}
}
