// Package plan is the arithmetic of a deployment, from numbers alone: the requests that fit into memory,
// the time of a step, tokens per second and their price. It must not know how a model is stored, devices
// or clocks.
package plan

import "github.com/millrace/millrace/kvmgr"

// TokenBytes is equation (1) of arXiv:2401.05391: the keys and values of one token in all layers, with
// size bytes for each element.
func TokenBytes(layers, kvHeads, headDim, size int) uint64 {
	return 2 * uint64(layers) * uint64(kvHeads) * uint64(headDim) * uint64(size)
}

// Slabs is the number of slabs that the allocator reserves for a request that declares its length, of which at most live slabs
// of a windowed group live at once; 0: any number. A beam search, whose number is that of equation (3) in each group, keeps all.
func Slabs(s kvmgr.Segments, g kvmgr.Counts, slabTokens, live int) int {
	if s.Beams > 1 {
		return g.Count() * kvmgr.SegmentSlabs(s, slabTokens)
	}
	return g.Need((s.Prompt+s.Response+slabTokens-1)/slabTokens, live) // prompt and response share a slab
}

// LiveSlabs is the number of slabs of a windowed group that a request has at once at most: for its window, the rows of the step that runs
// and those of the next one. In a small pool, of which full groups need at least half, the steps of its prompt are shorter. Without a window
// it is 0: any number.
func LiveSlabs(window, rows, pool int, g kvmgr.Counts, slabTokens int) int {
	if window == 0 {
		return 0
	}
	most := pool / max(g.Windowed, 1)
	if g.Full > 0 {
		most /= 2
	}
	live := kvmgr.LiveSlabs(window, 2*rows, slabTokens)
	return min(live, max(most, kvmgr.LiveSlabs(window, slabTokens, slabTokens)))
}

// Requests is BSmax of the paper: equal requests that a pool of slabs holds at once.
func Requests(pool int, s kvmgr.Segments, g kvmgr.Counts, slabTokens, live int) int {
	return pool / Slabs(s, g, slabTokens, live)
}

// Throughput is equation (4): tokens per second of batch requests that make response tokens each within
// the latency of the batch, in seconds.
func Throughput(batch, response int, latency float64) float64 {
	return float64(batch) * float64(response) / latency
}

// PricePerMillion is the price of a million tokens on a machine of a price per hour.
func PricePerMillion(perHour, tokensPerSecond float64) float64 {
	return perHour / 3600 / tokensPerSecond * 1e6
}

// Weights are a model that is known by its size alone. Each step reads every parameter once, and takes a
// product and a sum with it for each row.
type Weights struct {
	Parameters float64
	Bits       float64 // of a parameter in memory
}

// Bytes is the size of all parameters.
func (w Weights) Bytes() float64 { return w.Parameters * w.Bits / 8 }

// Seconds is the time of a step of rows on a machine of flops operations per second that reads bandwidth
// bytes per second, for the products and for reading the weights. The step takes the larger.
func (w Weights) Seconds(rows int, flops, bandwidth float64) (products, memory float64) {
	return 2 * w.Parameters * float64(rows) / flops, w.Bytes() / bandwidth
}
