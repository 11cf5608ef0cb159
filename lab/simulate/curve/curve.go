// Package curve draws latency against the rate of requests, as the pictures of
// benchmarks/k6 do. It must not know whether they were measured or simulated.
package curve

import (
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"
)

// Point is a latency at a rate.
type Point struct {
	Rate float64 // requests per second
	MS   float64
}

// Series is a line of points, from left to right.
type Series struct {
	Name   string
	Points []Point
}

// The picture and what is around the curves, in pixels.
const (
	width, height            = 720.0, 420.0
	left, right, top, bottom = 70.0, 20.0, 40.0, 60.0
	ticks                    = 5
)

var colors = []string{"#1f6feb", "#d1242f", "#1a7f37", "#9a6700"}

// Write writes an SVG picture of the series, and of a bound that latencies should hold
// (0: none). One far above them is left out: beside it they would be a flat line.
func Write(w io.Writer, title string, series []Series, boundMS float64) error {
	xMost, yMost := 0.0, 0.0
	for _, s := range series {
		for _, p := range s.Points {
			xMost, yMost = max(xMost, p.Rate), max(yMost, p.MS)
		}
	}
	if boundMS <= 2*yMost {
		yMost = max(yMost, boundMS)
	} else {
		boundMS = 0
	}
	xMost, yMost = nice(xMost), nice(yMost)
	x := func(v float64) float64 { return left + v/xMost*(width-left-right) }
	y := func(v float64) float64 { return height - bottom - v/yMost*(height-top-bottom) }
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="13">`, width, height)
	line(`<rect width="%g" height="%g" fill="white"/>`, width, height)
	line(`<text x="%g" y="22" text-anchor="middle" font-size="15">%s</text>`, width/2, html.EscapeString(title))
	for i := range ticks + 1 {
		xv, yv := xMost*float64(i)/ticks, yMost*float64(i)/ticks
		line(`<line x1="%g" x2="%g" y1="%.1f" y2="%.1f" stroke="#d0d7de"/>`, left, width-right, y(yv), y(yv))
		line(`<text x="%g" y="%.1f" text-anchor="end">%s</text>`, left-8, y(yv)+4, number(yv))
		line(`<text x="%.1f" y="%g" text-anchor="middle">%s</text>`, x(xv), height-bottom+20, number(xv))
	}
	line(`<text x="%g" y="%g" text-anchor="middle">requests per second</text>`, width/2, height-12)
	line(`<text transform="translate(16 %g) rotate(-90)" text-anchor="middle">ms</text>`, height/2)
	if boundMS > 0 {
		line(`<line x1="%g" x2="%g" y1="%.1f" y2="%.1f" stroke="#6e7781" stroke-dasharray="6 4"/>`, left, width-right, y(boundMS), y(boundMS))
	}
	for i, s := range series {
		color := colors[i%len(colors)]
		var points []string
		for _, p := range s.Points {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(p.Rate), y(p.MS)))
			line(`<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>`, x(p.Rate), y(p.MS), color)
		}
		line(`<polyline fill="none" stroke="%s" stroke-width="2" points="%s"/>`, color, strings.Join(points, " "))
		line(`<text x="%g" y="%g" fill="%s">%s</text>`, left+14, top+16+18*float64(i), color, html.EscapeString(s.Name))
	}
	line("</svg>")
	_, err := io.WriteString(w, b.String())
	return err
}

// number writes a value of an axis without an exponent.
func number(v float64) string {
	const precision = 1e6
	return strconv.FormatFloat(math.Round(v*precision)/precision, 'f', -1, 64)
}

// nice is the least of 1, 2, 5 x 10^n that is not below v; 1 for none.
func nice(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 5} {
		if f*power >= v {
			return f * power
		}
	}
	return 10 * power
}
