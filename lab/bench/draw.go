package bench

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/lab/curve"
	"github.com/millrace/millrace/lab/measure"
)

// Draw writes two pictures of the cases: prefix-ttft.svg has the time until all sequences have their first token by the length of their
// prompts, a line for each number of sequences, and prefix-tpot.svg the time per output token by the number of sequences, a line for each
// length.
func (r *Report) Draw(prefix string) error {
	prompt := func(c *measure.Result) int { return c.Prompt }
	batch := func(c *measure.Result) int { return c.Batch }
	return errors.Join(
		r.draw(prefix+"-ttft.svg", "Time to the first token of all sequences", "prompt tokens of each sequence", "sequences", prompt, batch,
			func(c *measure.Result) float64 { return c.AllFirst }),
		r.draw(prefix+"-tpot.svg", "Time per output token", "sequences", "prompt tokens", batch, prompt,
			func(c *measure.Result) float64 { return c.TPOT }),
	)
}

// draw writes a picture of seconds by x, with a line for each value of line.
func (r *Report) draw(path, title, x, lines string, at, line func(*measure.Result) int, seconds func(*measure.Result) float64) error {
	picture := curve.Picture{Title: title + " (" + r.Device.Name + ")", X: x, Y: "ms"}
	places := map[int]int{}
	for i := range r.Results {
		c := &r.Results[i]
		place, ok := places[line(c)]
		if !ok {
			place = len(picture.Series)
			places[line(c)] = place
			picture.Series = append(picture.Series, curve.Series{Name: fmt.Sprintf("%d %s", line(c), lines)})
		}
		s := &picture.Series[place]
		s.Points = append(s.Points, curve.Point{X: float64(at(c)), Y: 1e3 * seconds(c)})
	}
	return picture.WriteFile(path)
}

// Draw writes prefix-sdpa.svg: keys and values per second of the attention by the number of searches, and the bandwidth of the machine.
// Where each beam has a copy of its prompt, the copies do not count, so that lines compare times.
func (r *ProfileReport) Draw(prefix string) error {
	lines := []curve.Series{{Name: "one prompt for all beams"}, {Name: "a prompt for each beam"}, {Name: "reading alone"}}
	for i := range r.SDPA.Batches {
		one, each := &r.SDPA.Batches[i], &r.SDPA.Standard[i]
		for k, gbps := range []float64{one.GBps, float64(one.KVBytes) / each.Time / 1e9, one.Limits.ReadGBps} {
			lines[k].Points = append(lines[k].Points, curve.Point{X: float64(one.Batch), Y: gbps})
		}
	}
	picture := curve.Picture{
		Title: fmt.Sprintf("Keys and values that %d beams read, %d + %d tokens (%s)", r.SDPA.Beams, r.SDPA.Prompt, r.SDPA.Gen,
			r.Device.Name),
		X: "requests", Y: "GB/s", Series: lines,
	}
	return picture.WriteFile(prefix + "-sdpa.svg")
}
