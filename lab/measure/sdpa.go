package measure

import (
	"time"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/lab/roofline"
)

// SDPA is the attention of a step, of all layers.
type SDPA struct {
	Batch   int                `json:"batch"`
	Rows    int                `json:"rows"`         // of each beam
	Past    int                `json:"past"`         // tokens before these rows
	KVBytes int64              `json:"kv_bytes"`     // keys and values that it reads
	Time    float64            `json:"time_seconds"` // of these ops, median over steps
	GBps    float64            `json:"gbps"`
	Share   float64            `json:"share_of_read_bandwidth"` // above 1: a cache holds them
	Limits  device.Measurement `json:"limits"`                  // median of samples that alternate with the steps
}

// Attention times the attention of the step that Decode times, as in figure 6 of arXiv:2401.05391.
func (p Profile) Attention(w roofline.Workload) (SDPA, error) {
	s, err := p.decoding(w)
	if err != nil {
		return SDPA{}, err
	}
	defer s.close()
	return p.attention(s.decode(), w.Decode(w.Gen))
}

// AttentionOfRows times the attention of some rows of one sequence after past others, whose keys and values are arbitrary. A
// decode step has one row, a chunk of a prompt has more.
func (p Profile) AttentionOfRows(past, rows int) (SDPA, error) {
	s, err := newSequences(p.Model, 1, 1, past+rows, 0, 0)
	if err != nil {
		return SDPA{}, err
	}
	defer s.close()
	last := compute.Rows{Region: s.requests[0].region, Tokens: randomTokens(p.Model, rows), Position: past, Output: true}
	return p.attention([]compute.Rows{last}, roofline.Step{Batch: 1, Beams: 1, Rows: rows, Past: past, Tiles: 1})
}

// attention times the attention of a step.
func (p Profile) attention(rows []compute.Rows, step roofline.Step) (SDPA, error) {
	program := p.Model.Program
	a := SDPA{Batch: step.Batch, Rows: step.Rows, Past: step.Past}
	for i, c := range roofline.Costs(program, step, model.BF16Sizes()) {
		if program.Ops[i].Kind == model.OpAttention {
			a.KVBytes += c.KVBytes
		}
	}
	var times []time.Duration
	samples := limits{measure: p.Roof.Measure}
	for range p.Repeat {
		if _, err := samples.sample(); err != nil {
			return SDPA{}, err
		}
		ops, err := p.Model.RunTimed(rows)
		if err != nil {
			return SDPA{}, err
		}
		var sum time.Duration
		for i, op := range ops {
			if program.Ops[i].Kind == model.OpAttention {
				sum += op.Time
			}
		}
		times = append(times, sum)
	}
	a.Time, a.Limits = median(times).Seconds(), samples.median()
	a.GBps = float64(a.KVBytes) / a.Time / 1e9
	a.Share = a.GBps / a.Limits.ReadGBps
	return a, nil
}
