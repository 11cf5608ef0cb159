package plan

import (
	"fmt"

	"github.com/millrace/millrace/lab/curve"
)

// Draw writes a picture of the time per token by users, a line for each device.
func (r *Report) Draw(path string) error {
	picture := curve.Picture{
		Title: fmt.Sprintf("%s, %s + %s tokens: time per token", r.Model, count(r.Prompt), count(r.Gen)),
		X:     "users", Y: "ms per token", Bound: 1e3 * r.TPOT,
	}
	for i := range r.Devices {
		f := &r.Devices[i]
		line := curve.Series{Name: f.Device.ID}
		for _, p := range f.Users {
			line.Points = append(line.Points, curve.Point{X: float64(p.Users), Y: 1e3 * p.TPOT})
		}
		picture.Series = append(picture.Series, line)
	}
	return picture.WriteFile(path)
}
