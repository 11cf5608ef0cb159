package explain

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
)

// Launches are the kernels that a device was seen to launch for a prefill step
// and a decode step.
type Launches struct {
	Device  string        `json:"device"`
	Rows    int           `json:"prefill_rows"`
	Groups  []LaunchGroup `json:"groups"`
	Prefill int           `json:"prefill"` // of the whole step
	Decode  int           `json:"decode"`
}

// LaunchGroup is a run of equal decoder layers, or the ops before or after the
// layers (First -1, Count 1).
type LaunchGroup struct {
	First   int        `json:"first"` // layer
	Count   int        `json:"count"` // layers
	Ops     []OpLaunch `json:"ops"`
	Prefill int        `json:"prefill"` // of one of them
	Decode  int        `json:"decode"`
}

// OpLaunch is what an op launched.
type OpLaunch struct {
	Name    string `json:"name"`
	Prefill int    `json:"prefill"`
	Decode  int    `json:"decode"`
}

// CountLaunches loads a model and runs the two steps: only the backend itself
// knows what it launches.
func CountLaunches(options compute.Options, prefill int) (*Launches, error) {
	program, err := compute.ReadProgram(options.Dir)
	if err != nil {
		return nil, err
	}
	rows := min(prefill, program.MaxPositions-1)
	options.MaxRows, options.MaxOutputs, options.MaxSequences = rows, 1, 1
	options.Generates = true
	m, err := compute.Open(options)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	info, err := m.Device.Info()
	if err != nil {
		return nil, err
	}
	region, err := m.Engine().NewRegionAt(0, rows+1)
	if err != nil {
		return nil, err
	}
	defer region.Close()
	prompt, err := m.RunTimed([]compute.Rows{{Region: region, Tokens: make([]int32, rows), Output: true}})
	if err != nil {
		return nil, err
	}
	next, err := m.RunTimed([]compute.Rows{{Region: region, Tokens: make([]int32, 1), Position: rows, Output: true}})
	if err != nil {
		return nil, err
	}
	l := newLaunches(m.Engine().Program(), prompt, next)
	l.Device, l.Rows = fmt.Sprintf("%s, %s", info.Name, info.ISA), rows
	return l, nil
}

// newLaunches gathers what each op of the program launched by layers.
func newLaunches(p *model.Program, prefill, decode []device.OpTime) *Launches {
	l := &Launches{}
	for from := 0; from < len(p.Ops); {
		g := LaunchGroup{First: p.Ops[from].Layer, Count: 1}
		for ; from < len(p.Ops) && p.Ops[from].Layer == g.First; from++ {
			op := OpLaunch{p.Ops[from].Name, prefill[from].Launches, decode[from].Launches}
			g.Ops = append(g.Ops, op)
			g.Prefill += op.Prefill
			g.Decode += op.Decode
		}
		l.Prefill += g.Prefill
		l.Decode += g.Decode
		if n := len(l.Groups); n > 0 && g.First > 0 && slices.Equal(l.Groups[n-1].Ops, g.Ops) {
			l.Groups[n-1].Count++
			continue
		}
		l.Groups = append(l.Groups, g)
	}
	return l
}

// Print writes the launches for people.
func (l *Launches) Print(out io.Writer) error {
	fmt.Fprintf(out, "\nlaunches on %s, counted in a prefill step of %d rows and a decode step\n", l.Device, l.Rows)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "layers\top\tprefill\tdecode\t\n")
	for _, g := range l.Groups {
		layers := "-"
		if g.First >= 0 {
			layers = fmt.Sprintf("%d-%d", g.First, g.First+g.Count-1)
		}
		for _, op := range g.Ops {
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t\n", layers, op.Name, op.Prefill, op.Decode)
		}
		if g.First >= 0 {
			fmt.Fprintf(w, "%s\teach layer\t%d\t%d\t\n", layers, g.Prefill, g.Decode)
		}
	}
	fmt.Fprintf(w, "\twhole step\t%d\t%d\t\n", l.Prefill, l.Decode)
	return w.Flush()
}
