package sim_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
)

// TestADigestIsOfWhatTheTokensDependOn, not of the device's speed.
func TestADigestIsOfWhatTheTokensDependOn(t *testing.T) {
	digest := func(change func(*sim.Options)) string {
		o := options(t)
		change(&o)
		n := open(t, o).Numerics()
		return n.Digest()
	}
	first := digest(func(*sim.Options) {})
	for name, change := range map[string]func(*sim.Options){
		"speed": func(o *sim.Options) { o.Speed, o.Device.GBps = 2, 7 },
		"sizes": func(o *sim.Options) { o.MaxRows, o.MaxSequences, o.KVMemory = 32, 2, 1<<20 },
		"fault": func(o *sim.Options) { o.Fault = "step:7:lost" },
	} {
		require.Equal(t, first, digest(change), name)
	}
	seen := map[string]string{first: "nothing"}
	for name, change := range map[string]func(*sim.Options){
		"text":    func(o *sim.Options) { o.Text = []int32{3, 4} },
		"end":     func(o *sim.Options) { o.End = []int32{5} },
		"answers": func(o *sim.Options) { o.AnswerTokens = 9 },
		"device":  func(o *sim.Options) { o.Device.ID = "another" },
		"model":   func(o *sim.Options) { o.Program = program(t, "qwen2") },
		"KV":      func(o *sim.Options) { o.Program.KV = model.KVInt8 },
	} {
		d := digest(change)
		require.NotContains(t, seen, d, name)
		seen[d] = name
	}
}
