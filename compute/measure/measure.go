// Package measure times a model on a device without the pipeline around it.
package measure

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
)

// Case is one measurement: Batch sequences, each with a prompt of Prompt
// random tokens and Gen generated ones.
type Case struct {
	Prompt, Gen, Batch int
	Repeat             int // runs, of which the median counts
}

// Result of a case. Times are medians over the runs.
type Result struct {
	Batch         int     `json:"batch"`
	Prompt        int     `json:"prompt"`
	Gen           int     `json:"gen"`
	PrefillTPS    float64 `json:"prefill_tokens_per_second"`
	DecodeTPS     float64 `json:"decode_tokens_per_second"` // all sequences together
	TTFT          float64 `json:"ttft_seconds"`             // of the first sequence: its whole prompt
	TPOT          float64 `json:"tpot_seconds"`             // per token and sequence
	WeightGBps    float64 `json:"decode_weight_gbps"`       // weight bytes read per second while decoding
	PrefillGFLOPS float64 `json:"prefill_linear_gflops"`    // products of the linear ops only
}

// Run runs a case. Decoding feeds random tokens: time does not depend on them.
func Run(m *compute.Model, c Case) (Result, error) {
	if need := c.Batch * device.Slabs(c.Prompt+c.Gen); need > m.Slabs() {
		return Result{}, fmt.Errorf("measure: %w: %d sequences of %d tokens need %d KV slabs, the pool has %d",
			device.ErrNoMemory, c.Batch, c.Prompt+c.Gen, need, m.Slabs())
	}
	if c.Prompt+c.Gen > m.Program.MaxPositions {
		return Result{}, fmt.Errorf("measure: %w: %d tokens, the model's context is %d", device.ErrInvalid, c.Prompt+c.Gen, m.Program.MaxPositions)
	}
	var prefill, first, decode []time.Duration
	for range max(c.Repeat, 1) {
		r, err := once(m, c)
		if err != nil {
			return Result{}, err
		}
		prefill, first, decode = append(prefill, r.prefill), append(first, r.first), append(decode, r.decode)
	}
	pre, dec := median(prefill).Seconds(), median(decode).Seconds()
	tokens := float64(c.Batch * c.Prompt)
	res := Result{
		Batch: c.Batch, Prompt: c.Prompt, Gen: c.Gen,
		PrefillTPS: tokens / pre, TTFT: median(first).Seconds(),
		PrefillGFLOPS: tokens * float64(linearCost(m, 0).Flops) / pre / 1e9,
	}
	if c.Gen > 0 {
		res.DecodeTPS = float64(c.Batch*c.Gen) / dec
		res.TPOT = dec / float64(c.Gen)
		res.WeightGBps = float64(linearCost(m, 1).WeightBytes) * float64(c.Gen) / dec / 1e9
	}
	return res, nil
}

type times struct{ prefill, first, decode time.Duration }

func once(m *compute.Model, c Case) (t times, err error) {
	regions := make([]compute.Region, c.Batch)
	defer func() {
		for _, r := range regions {
			if r != nil {
				r.Close()
			}
		}
	}()
	per := device.Slabs(c.Prompt + c.Gen)
	for i := range regions {
		if regions[i], err = m.NewRegion(c.Prompt + c.Gen); err != nil {
			return t, err
		}
		slabs := make([]int32, per)
		for j := range slabs {
			slabs[j] = int32(i*per + j)
		}
		if err := regions[i].Append(slabs); err != nil {
			return t, err
		}
	}
	begin := time.Now()
	for i, r := range regions {
		if err := prefillOne(m, r, c.Prompt); err != nil {
			return t, err
		}
		if i == 0 {
			t.first = time.Since(begin)
		}
	}
	t.prefill = time.Since(begin)
	begin = time.Now()
	batch := make([]compute.Rows, c.Batch)
	for g := range c.Gen {
		for i, r := range regions {
			batch[i] = compute.Rows{Region: r, Tokens: randomTokens(m, 1), Position: c.Prompt + g, Output: true}
		}
		if _, err := m.Run(batch); err != nil {
			return t, err
		}
	}
	t.decode = time.Since(begin)
	return t, nil
}

// prefillOne runs a prompt in steps of at most the engine's rows.
func prefillOne(m *compute.Model, r compute.Region, prompt int) error {
	limit := m.Engine().Limits().MaxRows
	for at := 0; at < prompt; at += limit {
		n := min(limit, prompt-at)
		rows := compute.Rows{Region: r, Tokens: randomTokens(m, n), Position: at, Output: at+n == prompt}
		if _, err := m.Run([]compute.Rows{rows}); err != nil {
			return err
		}
	}
	return nil
}

func randomTokens(m *compute.Model, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = rand.Int32N(int32(m.Vocab()))
	}
	return ids
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
