package curve

import (
	"encoding/xml"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// picture is the part of an SVG picture that tests check.
type picture struct {
	Texts   []string `xml:"text"`
	Circles []struct {
		X float64 `xml:"cx,attr"`
		Y float64 `xml:"cy,attr"`
	} `xml:"circle"`
	Lines []struct {
		Dash string  `xml:"stroke-dasharray,attr"`
		Y    float64 `xml:"y1,attr"`
	} `xml:"line"`
	Polylines []struct {
		Points string `xml:"points,attr"`
	} `xml:"polyline"`
}

func draw(t *testing.T, title string, series []Series, bound float64) picture {
	t.Helper()
	var b strings.Builder
	drawn := Picture{Title: title, X: "users", Y: "ms & s", Series: series, Bound: bound}
	require.NoError(t, drawn.Write(&b))
	var p picture
	require.NoError(t, xml.Unmarshal([]byte(b.String()), &p), b.String())
	return p
}

func TestPointsLieWhereTheirValuesAre(t *testing.T) {
	p := draw(t, "a < b & c", []Series{{"p50", []Point{{1, 0}, {2, 100}}}, {"p99", []Point{{1, 50}, {2, 200}}}}, 150)
	require.Equal(t, "a < b & c", p.Texts[0])
	require.Contains(t, p.Texts, "p99")
	require.Contains(t, p.Texts, "users")
	require.Contains(t, p.Texts, "ms & s")
	require.Len(t, p.Polylines, 2)
	require.Len(t, strings.Fields(p.Polylines[1].Points), 2)
	require.Len(t, p.Circles, 4)
	require.InDelta(t, left+(width-left-right)/2, p.Circles[0].X, 0.1, "1 of 2 requests/s")
	require.InDelta(t, height-bottom, p.Circles[0].Y, 0.1, "0 ms")
	require.InDelta(t, width-right, p.Circles[3].X, 0.1, "the largest rate")
	require.InDelta(t, top, p.Circles[3].Y, 0.1, "200 ms is the top")
	bound := p.Lines[len(p.Lines)-1]
	require.NotEmpty(t, bound.Dash)
	require.InDelta(t, height-bottom-(height-top-bottom)*150/200, bound.Y, 0.1)
}

func TestABoundFarAboveIsLeftOut(t *testing.T) {
	points := []Series{{"p50", []Point{{1, 10}, {1000, 1200}}}}
	p := draw(t, "", points, 2401)
	for _, l := range p.Lines {
		require.Empty(t, l.Dash)
	}
	require.Contains(t, p.Texts, "1200", "no exponent")
	require.NotEmpty(t, draw(t, "", points, 2399).Lines[len(p.Lines)].Dash)
}

func TestNothingToDrawIsAPictureToo(t *testing.T) {
	p := draw(t, "empty", []Series{{Name: "p50"}}, 0)
	require.Empty(t, p.Circles)
	for _, l := range p.Lines {
		require.Empty(t, l.Dash, "no bound")
	}
}

func TestAnAxisEndsAtARoundNumber(t *testing.T) {
	for v, want := range map[float64]float64{0: 1, 0.03: 0.05, 1: 1, 1.01: 2, 3: 5, 5.1: 10, 99: 100, 1234: 2000} {
		require.InEpsilon(t, want, nice(v), 1e-9, "%g", v)
	}
}
