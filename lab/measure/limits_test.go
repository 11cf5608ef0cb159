package measure

import (
	"errors"
	"testing"
	"time"

	"github.com/millrace/millrace/compute/device"
)

func TestAShareIsOfTheLimitsAroundIt(t *testing.T) {
	read := []float64{10, 30, 50}
	next := 0
	l := limits{measure: func() (device.Measurement, error) {
		next++
		return device.Measurement{ReadGBps: read[next-1], PeakGFLOPS: 1}, nil
	}}
	type stretch struct {
		runs  int
		limit float64
	}
	var got []stretch
	w := window{limits: &l, share: func(runs int, seconds float64, limit device.Measurement) {
		if seconds <= 0 {
			t.Errorf("a stretch of %g s", seconds)
		}
		got = append(got, stretch{runs, limit.ReadGBps})
	}}
	work := func() error { return nil }
	for range 3 {
		if _, err := w.run(work); err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != 0 {
		t.Fatalf("a stretch of %d runs ended before its time", got[0].runs)
	}
	w.took = leastWindow // as if they had been long
	for range 2 {
		if _, err := w.run(work); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.end(), w.end()); err != nil { // nothing ran before the second
		t.Fatal(err)
	}
	want := []stretch{{4, 20}, {1, 40}}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("stretches %v, want %v", got, want)
	}
	if w.total <= 0 || w.total > time.Minute {
		t.Errorf("five runs took %v", w.total)
	}
}

func TestALimitThatCannotBeMeasuredEndsTheRun(t *testing.T) {
	broken := errors.New("no memory")
	w := window{limits: &limits{measure: func() (device.Measurement, error) { return device.Measurement{}, broken }}}
	if _, err := w.run(func() error { t.Error("ran"); return nil }); !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
}

func TestLimitsKeepBothPeaks(t *testing.T) {
	l := limits{measure: func() (device.Measurement, error) {
		return device.Measurement{ReadGBps: 1, PeakGFLOPS: 2, PeakInt8: 3}, nil
	}}
	want, err := l.sample()
	if err != nil {
		t.Fatal(err)
	}
	if got := l.median(); got != want {
		t.Errorf("median %+v, want %+v", got, want)
	}
}
