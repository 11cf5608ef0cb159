// Package curve draws lines over two axes, as the pictures of benchmarks/k6 do: latency by the
// rate of requests, or by users. It must not know whether they were measured or simulated.
package curve

import (
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
)

// Point is a value Y at X, in the units of the picture's axes.
type Point struct{ X, Y float64 }

// Series is a line of points, from left to right.
type Series struct {
	Name   string
	Points []Point
}

// Picture is lines over two axes, which begin at 0.
type Picture struct {
	Title  string
	X, Y   string // names of the axes
	Series []Series
	// Bound is a value of Y that the lines should not pass, 0: none. One above twice the
	// largest Y is left out: beside it the lines would be flat.
	Bound float64
}

// The picture and what is around the curves, in pixels.
const (
	width, height            = 720.0, 420.0
	left, right, top, bottom = 70.0, 20.0, 40.0, 60.0
	ticks                    = 5
)

var colors = []string{"#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#0a7ea4", "#57606a"}

// WriteFile writes the picture to a file.
func (p *Picture) WriteFile(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(p.Write(f), f.Close())
}

// Write writes the picture as SVG.
func (p *Picture) Write(w io.Writer) error {
	xMost, yMost, bound := 0.0, 0.0, p.Bound
	for _, s := range p.Series {
		for _, at := range s.Points {
			xMost, yMost = max(xMost, at.X), max(yMost, at.Y)
		}
	}
	if bound <= 2*yMost {
		yMost = max(yMost, bound)
	} else {
		bound = 0
	}
	xMost, yMost = nice(xMost), nice(yMost)
	x := func(v float64) float64 { return left + v/xMost*(width-left-right) }
	y := func(v float64) float64 { return height - bottom - v/yMost*(height-top-bottom) }
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="13">`, width, height)
	line(`<title>%s</title>`, html.EscapeString(p.Title))
	line(`<rect width="%g" height="%g" fill="white"/>`, width, height)
	line(`<text x="%g" y="22" text-anchor="middle" font-size="15">%s</text>`, width/2, html.EscapeString(p.Title))
	for i := range ticks + 1 {
		xv, yv := xMost*float64(i)/ticks, yMost*float64(i)/ticks
		line(`<line x1="%g" x2="%g" y1="%.1f" y2="%.1f" stroke="#d0d7de"/>`, left, width-right, y(yv), y(yv))
		line(`<text x="%g" y="%.1f" text-anchor="end">%s</text>`, left-8, y(yv)+4, number(yv))
		line(`<text x="%.1f" y="%g" text-anchor="middle">%s</text>`, x(xv), height-bottom+20, number(xv))
	}
	line(`<text x="%g" y="%g" text-anchor="middle">%s</text>`, width/2, height-12, html.EscapeString(p.X))
	line(`<text transform="translate(16 %g) rotate(-90)" text-anchor="middle">%s</text>`, height/2, html.EscapeString(p.Y))
	if bound > 0 {
		line(`<line x1="%g" x2="%g" y1="%.1f" y2="%.1f" stroke="#6e7781" stroke-dasharray="6 4"/>`, left, width-right, y(bound), y(bound))
	}
	for i, s := range p.Series {
		color := colors[i%len(colors)]
		var points []string
		for _, at := range s.Points {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(at.X), y(at.Y)))
			line(`<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>`, x(at.X), y(at.Y), color)
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
