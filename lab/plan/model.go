package plan

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
)

// ErrShape is a text that ParseShape cannot read.
var ErrShape = errors.New("invalid shape")

// Model is what a plan knows of a model: its program, or its size alone.
type Model struct {
	Name    string
	Program *model.Program // of a Shape: the fields of its KV cache only
	weights *Weights       // nil: the program knows its ops
}

// NewModel is a model with a program.
func NewModel(name string, p *model.Program) Model { return Model{Name: name, Program: p} }

// ParseShape reads a model of a few numbers: "params=7e9,layers=32,kv-heads=32,head-dim=128", and bits=4
// for parameters of other than 16 bits. Errors: ErrShape.
func ParseShape(text string) (Model, error) {
	values := map[string]float64{"params": 0, "layers": 0, "kv-heads": 0, "head-dim": 0, "bits": 16}
	for field := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(strings.TrimSpace(field), "=")
		if _, known := values[name]; !known {
			return Model{}, fmt.Errorf("%w: found %q, expected params=, layers=, kv-heads=, head-dim= or bits=", ErrShape, field)
		}
		v, err := strconv.ParseFloat(number, 64)
		if whole := name != "params" && name != "bits"; err != nil || !(v > 0 && v <= 1e15) || whole && (v != math.Trunc(v) || v > 1<<16) {
			return Model{},
				fmt.Errorf("%w: found %s=%q, expected a positive number, whole and at most 65536 for layers, kv-heads and head-dim",
					ErrShape, name, number)
		}
		values[name] = v
	}
	for _, name := range []string{"params", "layers", "kv-heads", "head-dim"} {
		if values[name] == 0 {
			return Model{}, fmt.Errorf("%w: %s is missing", ErrShape, name)
		}
	}
	return Model{
		Name: text, weights: &Weights{Parameters: values["params"], Bits: values["bits"]},
		Program: &model.Program{
			Layers: int(values["layers"]), KVHeads: int(values["kv-heads"]), HeadDim: int(values["head-dim"]), MaxPositions: math.MaxInt32,
		},
	}, nil
}

// weightBytes is the memory of the weights.
func (m *Model) weightBytes() uint64 {
	if m.weights != nil {
		return uint64(m.weights.Bytes())
	}
	return sim.WeightBytes(m.Program)
}

// clock computes the time of steps in seconds.
type clock interface {
	prefill(prompts, past, rows int) float64 // of rows of each prompt, after past tokens
	decode(users, past, prompt int) float64  // of a row for each beam of each user, after past tokens
}

// newClock returns the clock of the model on a device, for steps of at most the given rows.
func (m *Model) newClock(d sim.Device, rows, beams int) clock {
	if m.weights != nil {
		d.GBps, d.TFLOPS = d.GBps*float64(max(1, d.Tiles)), d.TFLOPS*float64(max(1, d.Tiles)) // the exchange is not known
		return &sizeClock{weights: *m.weights, device: d.Peak, beams: beams, token: float64(m.Program.KVBytesPerToken(model.BF16Sizes()))}
	}
	return &programClock{timer: sim.NewTimer(m.Program, d, rows, rows), beams: beams}
}

// programClock counts op by op.
type programClock struct {
	timer *sim.Timer
	beams int
}

func (c *programClock) prefill(prompts, past, rows int) float64 {
	c.timer.Begin()
	for range prompts {
		c.timer.Add(rows, past, 1)
	}
	return c.end()
}

func (c *programClock) decode(users, past, prompt int) float64 {
	c.timer.Begin()
	for range users {
		if c.beams == 1 {
			c.timer.Add(1, past, 1)
		} else {
			c.timer.AddBeams(c.beams, past, prompt)
		}
	}
	return c.end()
}

func (c *programClock) end() float64 {
	t := c.timer.End()
	return t.Device + t.Host
}

// sizeClock has the formulas of the TGI article, and the time to read the KV cache. It does not count
// the products of attention.
type sizeClock struct {
	weights Weights
	device  sim.Peak
	beams   int
	token   float64 // bytes of keys and values
}

func (c *sizeClock) step(rows, keys int) float64 {
	products, memory := c.weights.Seconds(rows, c.device.TFLOPS*1e12, c.device.GBps*1e9)
	return max(products, memory) + float64(keys)*c.token/(c.device.GBps*1e9)
}

func (c *sizeClock) prefill(prompts, past, rows int) float64 {
	return c.step(prompts*rows, prompts*past)
}

func (c *sizeClock) decode(users, past, prompt int) float64 {
	return c.step(users*c.beams, users*(prompt+c.beams*(past-prompt)))
}
