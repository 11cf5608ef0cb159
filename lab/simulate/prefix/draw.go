package prefix

import "github.com/millrace/millrace/lab/curve"

// Draw writes a picture of the hit ratios by size as SVG.
func (s *Study) Draw(path string) error {
	p := curve.Picture{Title: "Hits of the prefix cache, by order of eviction", X: "blocks in the cache", Y: "% of blocks"}
	for _, c := range []struct {
		name  string
		ratio func(*Size) float64
	}{
		{"Millrace", func(z *Size) float64 { return z.Server }},
		{"plain LRU", func(z *Size) float64 { return z.LRU }},
		{"oracle", func(z *Size) float64 { return z.Oracle }},
		{"no limit", func(*Size) float64 { return s.Unlimited }},
	} {
		line := curve.Series{Name: c.name}
		for i := range s.Sizes {
			line.Points = append(line.Points, curve.Point{X: float64(s.Sizes[i].Blocks), Y: 100 * c.ratio(&s.Sizes[i])})
		}
		p.Series = append(p.Series, line)
	}
	return p.WriteFile(path)
}
