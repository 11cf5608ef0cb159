package worker

// Counts are tokens that steps have processed.
type Counts struct {
	Generated    uint64 // sampled and accepted; in a step of a beam search, one for each beam
	PrefixTokens uint64 // of prompts that began to be computed
	PrefixHits   uint64 // of these, found in the prefix cache
}

// Counts returns what the steps so far added up to.
func (w *Worker) Counts() Counts {
	tokens, hits := w.loop.Metrics.PrefixTotals()
	return Counts{Generated: w.loop.generated.Load(), PrefixTokens: tokens, PrefixHits: hits}
}
