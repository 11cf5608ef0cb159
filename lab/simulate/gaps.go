package simulate

import (
	"math"
	"time"
)

// gapBits are the bits of the mantissa that tell bins of a histogram apart: a bin is less than 1% wide.
const gapBits = 7

// gaps is a histogram of times between tokens. A list of them would have all tokens of the simulation.
type gaps struct {
	bins  [64 << gapBits]int
	count int
	sum   float64 // seconds
}

func (g *gaps) add(d time.Duration) {
	d = max(d, 1)
	g.bins[gapBin(d)]++
	g.count++
	g.sum += d.Seconds()
}

// gapBin is the exponent of the nanoseconds, and the first bits of the mantissa.
func gapBin(d time.Duration) int {
	const mantissa, bias = 52, 1023
	return int(math.Float64bits(float64(d))>>(mantissa-gapBits)) - bias<<gapBits
}

// gapOf is the middle of a bin, in seconds.
func gapOf(bin int) float64 {
	within := (float64(bin&(1<<gapBits-1)) + 0.5) / (1 << gapBits)
	return math.Ldexp(1+within, bin>>gapBits) / float64(time.Second)
}

// quantiles returns nearest ranks, by bin.
func (g *gaps) quantiles() (q Quantiles) {
	if g.count == 0 {
		return q
	}
	q.Mean = g.sum / float64(g.count)
	for _, r := range []struct {
		share float64
		to    *float64
	}{{0.5, &q.P50}, {0.95, &q.P95}, {0.99, &q.P99}} {
		rank := int(math.Ceil(r.share * float64(g.count)))
		for bin := range g.bins {
			if rank -= g.bins[bin]; rank <= 0 {
				*r.to = gapOf(bin)
				break
			}
		}
	}
	return q
}
