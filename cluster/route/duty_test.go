package route

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestASequenceGoesToAWorkerWithItsDuty(t *testing.T) {
	p, d, both := Worker{Node: "p", Duty: Prefill}, Worker{Node: "d", Duty: Decode}, Worker{Node: "c"}
	gone := func(w Worker) Worker { w.Suspected = true; return w }
	for name, c := range map[string]struct {
		workers    []Worker
		new, begun string
	}{
		"one of each":             {[]Worker{p, d}, "p", "d"},
		"decode alone":            {[]Worker{d}, "d", "d"},
		"prefill alone":           {[]Worker{p}, "p", "p"},
		"the prefill worker died": {[]Worker{gone(p), d}, "d", "d"},
		"the decode worker died":  {[]Worker{p, gone(d)}, "p", "p"},
		"decode and compute":      {[]Worker{d, both}, "c", "d"},
		"prefill and compute":     {[]Worker{gone(d), p, both}, "", "c"},
	} {
		for begun, want := range map[bool]string{false: c.new, true: c.begun} {
			if want == "" {
				continue
			}
			r := New(Default(), rand.New(rand.NewPCG(1, 2)))
			require.Equal(t, want, c.workers[r.Compute(0, Query{Begun: begun}, c.workers)].Node, "%s, begun %v", name, begun)
		}
	}
}

func TestASequenceMovesToAnEqualDecodeWorkerThatIsThere(t *testing.T) {
	p, d := Worker{Node: "p", Duty: Prefill, Numerics: "A"}, Worker{Node: "d", Duty: Decode, Numerics: "A"}
	other, draining := d, d
	other.Numerics, draining.Draining = "B", true
	both := Worker{Node: "p", Numerics: "A"}
	for name, c := range map[string]struct {
		workers []Worker
		moves   bool
	}{
		"a decode worker":         {[]Worker{p, d}, true},
		"none":                    {[]Worker{p}, false},
		"of another class":        {[]Worker{p, other}, false},
		"it drains":               {[]Worker{p, draining}, false},
		"from a compute worker":   {[]Worker{both, d}, false},
		"to a compute worker":     {[]Worker{p, {Node: "c", Numerics: "A"}}, false},
		"from an unknown process": {[]Worker{d}, false},
	} {
		require.Equal(t, c.moves, Default().Moves(0, "p", c.workers), name)
	}
}
