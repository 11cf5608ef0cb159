package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/millrace/millrace/lab/curve"
)

// Draw writes two pictures of the simulations: prefix-ttft.svg and prefix-tpot.svg.
func (r *Study) Draw(prefix string) error {
	trials := slices.SortedFunc(slices.Values(r.trials()), func(a, b Trial) int { return cmp.Compare(a.QPS, b.QPS) })
	fleet := fmt.Sprintf("%d x %s, simulated", r.Workers, r.Device.Name)
	return errors.Join(
		drawCurve(prefix+"-ttft.svg", "Time to first token ("+fleet+")", trials, r.SLO.TTFT,
			func(t *Trial) Quantiles { return t.TTFT }),
		drawCurve(prefix+"-tpot.svg", "Time per output token ("+fleet+")", trials, r.SLO.TPOT,
			func(t *Trial) Quantiles { return t.TPOT }),
	)
}

func drawCurve(path, title string, trials []Trial, bound time.Duration, of func(*Trial) Quantiles) error {
	p50, p99 := curve.Series{Name: "p50"}, curve.Series{Name: "p99"}
	for i := range trials {
		q := of(&trials[i])
		p50.Points = append(p50.Points, curve.Point{X: trials[i].QPS, Y: 1e3 * q.P50})
		p99.Points = append(p99.Points, curve.Point{X: trials[i].QPS, Y: 1e3 * q.P99})
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	picture := curve.Picture{
		Title: title, X: "requests per second", Y: "ms",
		Series: []curve.Series{p50, p99}, Bound: 1e3 * bound.Seconds(),
	}
	return errors.Join(picture.Write(f), f.Close())
}
