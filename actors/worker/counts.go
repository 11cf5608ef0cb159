package worker

import "sync/atomic"

// Counts are tokens that steps have processed.
type Counts struct {
	Generated    uint64 // sampled and accepted; in a step of a beam search, one for each beam
	PrefixTokens uint64 // of prompts that began to be computed
	PrefixHits   uint64 // of these, found in the prefix cache
}

// counts are the Counts of a loop.
type counts struct{ generated, lookedUp, hits atomic.Uint64 }
