package simulate

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/compute/sim"
)

// logEvery is the time between two lines of progress in the log.
const logEvery = 5 * time.Second

// Study is the simulations of a workload at several rates.
type Study struct {
	Model    string     `json:"model"`
	Weights  string     `json:"weights"`
	Device   sim.Device `json:"device"`
	Workers  int        `json:"workers"`
	KVSlabs  int        `json:"kv_slabs"`
	Workload Workload   `json:"workload"`
	SLO      SLO        `json:"slo"`
	Runs     []Trial    `json:"runs,omitempty"`
	Found    *Found     `json:"found,omitempty"`
}

func (r *Study) trials() []Trial {
	if r.Found != nil {
		return r.Found.Trials
	}
	return r.Runs
}

// Plan says which rates to simulate.
type Plan struct {
	Model, Weights string // for the report
	Fleet          Config // without Requests and Progress
	Workload       Workload
	QPS            []float64
	Admissions     []Admission // at least one
	Prefill        []int       // of the workers, those that are prefill workers; at least one number
	// Hold is the quantile of a search for the largest rate that holds the bounds of Fleet.SLO,
	// from QPS[0] on, with Admissions[0] and Prefill[0]. "": each rate of QPS is simulated with each of Admissions and Prefill.
	Hold string
	Log  zerolog.Logger
}

// Run simulates the workload at each rate, or searches one.
func (p Plan) Run() (*Study, error) {
	study := &Study{
		Model: p.Model, Weights: p.Weights, Device: p.Fleet.Device, Workers: p.Fleet.Workers, KVSlabs: p.Fleet.Slabs,
		SLO: p.Fleet.SLO, Workload: p.Workload,
	}
	var err error
	if p.Hold != "" {
		study.Found, err = FindQPS(p.QPS[0], Bound{SLO: study.SLO, Quantile: p.Hold}, func(qps float64) (*Report, error) {
			return p.at(p.Admissions[0], p.Prefill[0], qps)
		})
		return study, err
	}
	for _, admission := range p.Admissions {
		for _, prefill := range p.Prefill {
			for _, qps := range p.QPS {
				r, err := p.at(admission, prefill, qps)
				if err != nil {
					return nil, err
				}
				study.Runs = append(study.Runs, Trial{QPS: qps, Report: r})
			}
		}
	}
	return study, nil
}

// at simulates the workload at one rate.
func (p Plan) at(admission Admission, prefill int, qps float64) (*Report, error) {
	w, cfg := p.Workload, p.Fleet
	w.QPS, cfg.Admission, cfg.Prefill = qps, admission, prefill
	var err error
	if cfg.Requests, err = w.Source(); err != nil {
		return nil, err
	}
	last := time.Now()
	cfg.Progress = func(ended int) {
		if time.Since(last) < logEvery {
			return
		}
		last = time.Now()
		p.Log.Info().Float64("qps", qps).Int("ended", ended).Int("requests", w.Requests).Msg("simulating")
	}
	return Run(cfg)
}
