package sched

import (
	"testing"
	"time"
)

// TestHoldingPromptsBackShortensTheTimePerToken is what the waiting-served ratio is for: where
// rows take most of a step's time, fewer steps with prompt rows give the decoding sequences a
// steadier pace. The time to the first token pays for it.
func TestHoldingPromptsBackShortensTheTimePerToken(t *testing.T) {
	const until = 5 * time.Minute
	c := capacity(t, smallModel, 64, until)
	run := func(ratio float64) (ttft, tpot Time) {
		d := smallModel
		d.ratio = ratio
		o := share(t, d, 64, d.poisson("a", 1, 0.95*c, until, 3))["a"]
		return quantile(o.ttft, 0.5), quantile(o.tpot, 0.99)
	}
	ttft, tpot := run(0)
	heldTTFT, heldTPOT := run(0.3)
	t.Logf("95%% of the capacity: time per token (p99) %v, %v with ratio 0.3; time to the first token (p50) %v, %v with ratio 0.3",
		tpot, heldTPOT, ttft, heldTTFT)
	if heldTPOT > tpot*9/10 {
		t.Errorf("the time per token is %v with ratio 0.3, expected at most 0.9 x %v", heldTPOT, tpot)
	}
	if most := ttft + 2*maxHeld*64*smallModel.decode; heldTTFT > most {
		t.Errorf("the time to the first token is %v with ratio 0.3, expected at most %v", heldTTFT, most)
	}
}
