// Package measure times a model on a device without the pipeline around it. It must not know requests,
// actors or who reads the figures.
package measure

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
)

// Case is one measurement: Batch sequences, each with a prompt of Prompt
// random tokens and Gen generated ones. Those of an encoder are texts, and Gen does not count.
type Case struct {
	Prompt, Gen, Batch int
	Shared             int // first tokens of the prompts, whole slabs, that are computed once and have the same slabs
	Repeat             int // runs, of which the median counts
}

// prompt is the position and the number of the tokens that are computed of the prompt of sequence i.
func (c Case) prompt(i int) (position, tokens int) {
	if i == 0 {
		return 0, c.Prompt
	}
	return c.Shared, c.Prompt - c.Shared
}

// computed is the number of the tokens that are computed of all prompts.
func (c Case) computed() int { return c.Batch*c.Prompt - (c.Batch-1)*c.Shared }

// Result of a case. Times are medians over the runs, limits over the samples. A
// share is the median of those of windows of some steps, each with the limits
// measured before and after it: the machine is shared, and its limits move.
type Result struct {
	Batch         int     `json:"batch"`
	Prompt        int     `json:"prompt"`
	Gen           int     `json:"gen"`
	Shared        int     `json:"shared,omitempty"`
	PrefillTPS    float64 `json:"prefill_tokens_per_second"`
	DecodeTPS     float64 `json:"decode_tokens_per_second"` // all sequences together
	TTFT          float64 `json:"ttft_seconds"`             // of the first sequence: its whole prompt
	AllFirst      float64 `json:"ttft_of_all_seconds"`      // of the last sequence: all prompts, one after the other
	TPOT          float64 `json:"tpot_seconds"`             // per token and sequence
	WeightGBps    float64 `json:"decode_weight_gbps"`       // weight bytes read per second while decoding
	PrefillGFLOPS float64 `json:"prefill_linear_gflops"`    // products of the linear ops only

	TextsPS float64 `json:"texts_per_second,omitempty"` // of an encoder

	Limits    device.Measurement `json:"limits"`
	ReadShare float64            `json:"decode_share_of_read_bandwidth"`
	PeakShare float64            `json:"prefill_share_of_peak"`
}

// Run runs a case. Decoding feeds random tokens: time does not depend on them.
func Run(m *compute.Model, c Case) (Result, error) {
	if !m.Program.Generates() {
		c.Gen = 0
	}
	if need := c.Batch*regionSlabs(m, c.Prompt+c.Gen) - (c.Batch-1)*device.Slabs(c.Shared); need > m.Slabs() {
		return Result{}, fmt.Errorf("measure: %w: %d sequences of %d tokens need %d KV slabs, the pool has %d",
			device.ErrNoMemory, c.Batch, c.Prompt+c.Gen, need, m.Slabs())
	}
	if c.Shared%device.SlabTokens != 0 || c.Shared >= c.Prompt {
		return Result{}, fmt.Errorf("measure: %w: %d shared tokens of a prompt of %d, expected fewer, and whole slabs of %d",
			device.ErrInvalid, c.Shared, c.Prompt, device.SlabTokens)
	}
	if kv := m.KV(); c.Shared > 0 && (!kv.Copies || kv.Snapshots()) {
		return Result{}, fmt.Errorf("measure: %w: %d shared tokens of a model whose layers keep a state, expected 0", device.ErrInvalid,
			c.Shared)
	}
	if c.Prompt+c.Gen > m.Program.MaxPositions {
		return Result{}, fmt.Errorf("measure: %w: %d tokens, the model's context is %d", device.ErrInvalid, c.Prompt+c.Gen,
			m.Program.MaxPositions)
	}
	if rows := m.Engine().Limits().MaxRows; !m.Program.Generates() && c.Prompt > rows {
		return Result{}, fmt.Errorf("measure: %w: texts of %d tokens, a step of --max-batch-tokens has %d, and an encoder needs a whole text in one",
			device.ErrInvalid, c.Prompt, rows)
	}
	info, err := m.Device.Info()
	if err != nil {
		return Result{}, err
	}
	roof, err := measuredRoof(m.Device, info)
	if err != nil {
		return Result{}, err
	}
	defer roof.Close()
	r := run{m: m, c: c, limits: limits{measure: peakOf(m, roof)}}
	for range max(c.Repeat, 1) {
		if err := r.once(); err != nil {
			return Result{}, err
		}
	}
	return r.result(), nil
}

// run is a case under way. Its durations are those of the repetitions.
type run struct {
	m      *compute.Model
	c      Case
	limits limits

	prefill, first, decode []time.Duration
	peakShares, readShares []float64 // of windows
}

func (r *run) result() Result {
	pre, dec := median(r.prefill).Seconds(), median(r.decode).Seconds()
	tokens := r.c.computed()
	res := Result{
		Batch: r.c.Batch, Prompt: r.c.Prompt, Gen: r.c.Gen, Shared: r.c.Shared,
		PrefillTPS: float64(tokens) / pre, TTFT: median(r.first).Seconds(), AllFirst: pre,
		PrefillGFLOPS: r.prefillFlops(tokens) / pre / 1e9,
		Limits:        r.limits.median(),
		PeakShare:     median(r.peakShares),
	}
	if r.c.Gen > 0 {
		res.DecodeTPS = float64(r.c.Batch*r.c.Gen) / dec
		res.TPOT = dec / float64(r.c.Gen)
		res.WeightGBps = r.weightBytes(r.c.Gen) / dec / 1e9
		res.ReadShare = median(r.readShares)
	}
	if !r.m.Program.Generates() {
		res.TextsPS = float64(r.c.Batch) / pre
	}
	return res
}

func (r *run) prefillFlops(tokens int) float64 {
	return float64(tokens) * float64(linearCost(r.m, 1, 0).Flops)
}

func (r *run) weightBytes(steps int) float64 {
	return float64(steps) * float64(linearCost(r.m, r.c.Batch, r.c.Batch).WeightBytes)
}

func (r *run) once() error {
	s, err := newSequences(r.m, r.c.Batch, 1, r.c.Prompt, r.c.Gen, r.c.Shared)
	if err != nil {
		return err
	}
	defer s.close()
	computed := 0 // tokens of the window
	prefill := window{limits: &r.limits, share: func(_ int, seconds float64, limit device.Measurement) {
		r.peakShares = append(r.peakShares, r.prefillFlops(computed)/seconds/1e9/limit.PeakGFLOPS)
		computed = 0
	}}
	together := r.together()
	for i := 0; i < len(s.requests); i += together {
		took, err := prefill.run(func() error {
			if together > 1 {
				texts := s.texts(i, min(i+together, len(s.requests)))
				computed += len(texts) * r.c.Prompt
				_, err := r.m.Run(texts)
				return err
			}
			position, tokens := r.c.prompt(i)
			computed += tokens
			return prefillOne(r.m, s.requests[i].region, position, tokens)
		})
		if err != nil {
			return err
		}
		if i == 0 {
			r.first = append(r.first, took)
		}
	}
	if err := prefill.end(); err != nil {
		return err
	}
	r.prefill = append(r.prefill, prefill.total)

	decode := window{limits: &r.limits, share: func(steps int, seconds float64, limit device.Measurement) {
		r.readShares = append(r.readShares, r.weightBytes(steps)/seconds/1e9/limit.ReadGBps)
	}}
	batch := make([]compute.Rows, len(s.requests))
	for g := range r.c.Gen {
		for i, request := range s.requests {
			batch[i] = compute.Rows{Region: request.region, Tokens: randomTokens(r.m, 1), Position: r.c.Prompt + g, Output: true}
		}
		if _, err := decode.run(func() error { _, err := r.m.Run(batch); return err }); err != nil {
			return err
		}
	}
	if err := decode.end(); err != nil {
		return err
	}
	r.decode = append(r.decode, decode.total)
	return nil
}

// together is how many prompts a step has: as many texts of an encoder as it has rows for, and else one.
func (r *run) together() int {
	if r.m.Program.Generates() {
		return 1
	}
	return TextsPerStep(r.m.Engine().Limits().MaxRows, r.c.Prompt)
}

// TextsPerStep is how many texts of an encoder a step of some rows has, at least one.
func TextsPerStep(rows, tokens int) int { return max(rows/tokens, 1) }

// prefillOne runs n tokens of a prompt, to its end, in steps of at most the engine's rows.
func prefillOne(m *compute.Model, r compute.Region, position, n int) error {
	limit := m.Engine().Limits().MaxRows
	for at := 0; at < n; at += limit {
		chunk := min(limit, n-at)
		rows := compute.Rows{Region: r, Tokens: randomTokens(m, chunk), Position: position + at, Output: at+chunk == n}
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

func median[T cmp.Ordered](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}
