package plan

import "github.com/millrace/millrace/kvmgr"

// The arithmetic of a deployment, from numbers alone: the requests that fit into memory, the time of a step, tokens per second and their
// price.

// Slabs is the number of slabs that the allocator reserves for a request that declares its length. A beam search, whose number is that of
// equation (3) in each group, keeps all.
func Slabs(s kvmgr.Segments, kv kvmgr.Spec) int {
	if s.Beams > 1 {
		return len(kv.Groups) * kvmgr.SegmentSlabs(s, kv.SlabTokens)
	}
	return kv.Need().AtOnce((s.Prompt + s.Response + kv.SlabTokens - 1) / kv.SlabTokens) // prompt and response share a slab
}

// Requests is BSmax of the paper: equal requests that a pool of slabs holds at once.
func Requests(pool int, s kvmgr.Segments, kv kvmgr.Spec) int { return pool / Slabs(s, kv) }

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
