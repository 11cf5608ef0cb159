package measure

import (
	"time"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/lab/roofline"
)

// SDPA is the attention of a decode step, as in figure 6 of arXiv:2401.05391.
type SDPA struct {
	Batch   int                `json:"batch"`
	KVBytes int64              `json:"kv_bytes"`     // keys and values that the attention of all layers reads
	Time    float64            `json:"time_seconds"` // of these ops, median over steps
	GBps    float64            `json:"gbps"`
	Share   float64            `json:"share_of_read_bandwidth"` // above 1: a cache holds them
	Limits  device.Measurement `json:"limits"`                  // median of samples that alternate with the steps
}

// Attention times the attention of the step that Decode times.
func (p Profile) Attention(w roofline.Workload) (SDPA, error) {
	s, err := p.decoding(w)
	if err != nil {
		return SDPA{}, err
	}
	defer s.close()
	program := p.Model.Program
	a := SDPA{Batch: w.Batch}
	for i, c := range roofline.Costs(program, w.Decode(w.Gen), model.BF16Sizes()) {
		if program.Ops[i].Kind == model.OpAttention {
			a.KVBytes += c.KVBytes
		}
	}
	rows := s.decode()
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
