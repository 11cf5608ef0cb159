package measure

import (
	"slices"
	"time"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
)

// A window is at least this long, and windowCost times as long as measuring the
// limits takes: their samples should be many, and a small part of the run.
const (
	leastWindow = 300 * time.Millisecond
	windowCost  = 10
)

// limits are samples of what the device can do at most.
type limits struct {
	measure          func() (device.Measurement, error)
	read, peak, int8 []float64
	cost             time.Duration // of the last sample
}

// peakOf measures the limits of a roof, with the peak of what multiplies m's weights.
func peakOf(m *compute.Model, roof *Roof) func() (device.Measurement, error) {
	integers := slices.ContainsFunc(m.Program.Ops, func(op model.Op) bool { return op.Weights.Integers() })
	return func() (device.Measurement, error) {
		limit, err := roof.Measure()
		if integers && limit.PeakInt8 > 0 {
			limit.PeakGFLOPS = limit.PeakInt8
		}
		return limit, err
	}
}

func (l *limits) sample() (device.Measurement, error) {
	begin := time.Now()
	m, err := l.measure()
	if err != nil {
		return m, err
	}
	l.cost = time.Since(begin)
	l.read, l.peak, l.int8 = append(l.read, m.ReadGBps), append(l.peak, m.PeakGFLOPS), append(l.int8, m.PeakInt8)
	return m, nil
}

// median is that of the samples so far, at least one.
func (l *limits) median() device.Measurement {
	return device.Measurement{ReadGBps: median(l.read), PeakGFLOPS: median(l.peak), PeakInt8: median(l.int8)}
}

// window times runs, and compares each stretch of them with the limits sampled
// before and after it.
type window struct {
	limits *limits
	share  func(runs int, seconds float64, limit device.Measurement)
	total  time.Duration

	before device.Measurement
	open   bool
	runs   int
	took   time.Duration
}

// run times one run. Limits are sampled outside of its time.
func (w *window) run(f func() error) (time.Duration, error) {
	if !w.open {
		before, err := w.limits.sample()
		if err != nil {
			return 0, err
		}
		w.before, w.open = before, true
	}
	begin := time.Now()
	if err := f(); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	w.total += took
	w.took += took
	w.runs++
	if w.took < max(leastWindow, windowCost*w.limits.cost) {
		return took, nil
	}
	return took, w.end()
}

// end closes the stretch; the next run begins another with the limits sampled here.
func (w *window) end() error {
	if w.runs == 0 {
		return nil
	}
	after, err := w.limits.sample()
	if err != nil {
		return err
	}
	w.share(w.runs, w.took.Seconds(), device.Measurement{
		ReadGBps:   (w.before.ReadGBps + after.ReadGBps) / 2,
		PeakGFLOPS: (w.before.PeakGFLOPS + after.PeakGFLOPS) / 2,
	})
	w.before, w.runs, w.took = after, 0, 0
	return nil
}
