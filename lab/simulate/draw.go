package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/lab/curve"
)

// Draw writes three pictures of the simulations: prefix-ttft.svg, prefix-tpot.svg and prefix-gap.svg.
func (r *Study) Draw(prefix string) error {
	trials := slices.SortedStableFunc(slices.Values(r.trials()), func(a, b Trial) int {
		return cmp.Or(cmp.Compare(a.Prefill, b.Prefill), cmp.Compare(a.QPS, b.QPS))
	})
	fleet := fmt.Sprintf("%d x %s, simulated", r.Workers, r.Device.Name)
	return errors.Join(
		drawCurve(prefix+"-ttft.svg", "Time to first token ("+fleet+")", trials, r.SLO.TTFT,
			func(t *Trial) Quantiles { return t.TTFT }),
		drawCurve(prefix+"-tpot.svg", "Time per output token ("+fleet+")", trials, r.SLO.TPOT,
			func(t *Trial) Quantiles { return t.TPOT }),
		drawCurve(prefix+"-gap.svg", "Time between two tokens ("+fleet+")", trials, 0,
			func(t *Trial) Quantiles { return t.Gap }),
	)
}

// drawCurve draws two lines for each division of the workers.
func drawCurve(path, title string, trials []Trial, bound time.Duration, of func(*Trial) Quantiles) error {
	picture := curve.Picture{Title: title, X: "requests per second", Y: "ms", Bound: 1e3 * bound.Seconds()}
	one := trials[0].Prefill == trials[len(trials)-1].Prefill
	for i := range trials {
		t := &trials[i]
		if i == 0 || t.Prefill != trials[i-1].Prefill {
			name := ": " + t.Division()
			if one {
				name = ""
			}
			picture.Series = append(picture.Series, curve.Series{Name: "p50" + name}, curve.Series{Name: "p99" + name})
		}
		q, lines := of(t), picture.Series[len(picture.Series)-2:]
		lines[0].Points = append(lines[0].Points, curve.Point{X: t.QPS, Y: 1e3 * q.P50})
		lines[1].Points = append(lines[1].Points, curve.Point{X: t.QPS, Y: 1e3 * q.P99})
	}
	return picture.WriteFile(path)
}
