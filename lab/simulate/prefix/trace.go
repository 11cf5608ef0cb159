// Package prefix replays the prompts of a trace through the prefix cache of kvmgr, and compares orders of eviction by their
// hit ratios. It must not know of time, workers or devices: a prompt ends before the next one begins.
package prefix

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ErrTrace is a file that is no trace.
var ErrTrace = errors.New("prefix: invalid trace")

// Trace is prompts by arrival. A prompt is the ids of its blocks: equal ids have equal tokens in the block and before it.
type Trace [][]int32

// Read reads a trace of JSON lines. Each has "hash_ids", the ids of a prompt's blocks; other keys are ignored. Errors:
// ErrTrace, those of r.
func Read(r io.Reader) (Trace, error) {
	var t Trace
	lines := bufio.NewReader(r)
	for {
		text, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if len(text) > 0 {
			var line struct {
				Blocks []int32 `json:"hash_ids"`
			}
			if err := json.Unmarshal(text, &line); err != nil {
				return nil, fmt.Errorf("%w: line %d: %w", ErrTrace, len(t)+1, err)
			}
			if len(line.Blocks) == 0 {
				return nil, fmt.Errorf("%w: line %d has no hash_ids, expected at least one", ErrTrace, len(t)+1)
			}
			t = append(t, line.Blocks)
		}
		if err == nil {
			continue
		}
		if len(t) == 0 {
			return nil, fmt.Errorf("%w: no lines, expected at least one", ErrTrace)
		}
		return t, nil
	}
}
