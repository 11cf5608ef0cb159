package prefix

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/millrace/millrace/kvmgr"
)

// Study is the hit ratios of a trace. All ratios are shares of the trace's blocks, 0 to 1.
type Study struct {
	Prompts   int     `json:"prompts"`
	Blocks    int     `json:"blocks"`    // of all prompts together
	Distinct  int     `json:"distinct"`  // blocks that differ
	Unlimited float64 `json:"unlimited"` // hit ratio of a cache that evicts nothing
	Sizes     []Size  `json:"sizes"`
}

// Size is the hit ratios of caches of one size.
type Size struct {
	Blocks int     `json:"blocks"`
	LRU    float64 `json:"lru"`    // evicts the leaf that was used the longest ago
	Server float64 `json:"server"` // evicts as a server does
	Oracle float64 `json:"oracle"` // evicts the leaf whose next use is the furthest away
}

// Compare replays the trace through caches of the given sizes, in blocks, and returns the ratios by size.
func (t Trace) Compare(sizes []int) (*Study, error) {
	s := &Study{Prompts: len(t)}
	distinct := make(map[int32]bool)
	for _, prompt := range t {
		s.Blocks += len(prompt)
		for _, block := range prompt {
			distinct[block] = true
		}
	}
	s.Distinct = len(distinct)
	var err error
	if s.Unlimited, err = t.Replay(s.Distinct+1, kvmgr.LRU); err != nil {
		return nil, err
	}
	next := t.oracle()
	for _, blocks := range slices.Sorted(slices.Values(sizes)) {
		size := Size{Blocks: blocks}
		for _, c := range []struct {
			ratio *float64
			worth kvmgr.Worth
		}{{&size.LRU, kvmgr.LRU}, {&size.Server, kvmgr.ReusedLRU}, {&size.Oracle, next}} {
			if *c.ratio, err = t.Replay(blocks, c.worth); err != nil {
				return nil, err
			}
		}
		s.Sizes = append(s.Sizes, size)
	}
	return s, nil
}

// Print writes the study for people.
func (s *Study) Print(out io.Writer) error {
	fmt.Fprintf(out, "%d prompts, %d blocks, %d of them different; a cache without a limit hits %.2f%%\n\n", s.Prompts, s.Blocks,
		s.Distinct, 100*s.Unlimited)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "blocks\tplain LRU\tMillrace\toracle\tdistance to it\t")
	for _, z := range s.Sizes {
		fmt.Fprintf(w, "%d\t%.2f%%\t%.2f%%\t%.2f%%\t%.2f%%\t\n", z.Blocks, 100*z.LRU, 100*z.Server, 100*z.Oracle, 100*(z.Oracle-z.Server))
	}
	return w.Flush()
}
