// Package sim is the simulated device of --backend sim. It has no kernels: a token is a hash of the
// tokens before it, and a step takes the time of the roofline model. It makes load and failure
// tests cheap, and shows how devices would do that are not at hand. No result of it is a
// measurement of a device.
//
// It must not know of the scheduler, of actors or of research (lab).
package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/compute/model"
)

// ErrDevice reports an invalid description of a device.
var ErrDevice = errors.New("sim: invalid device")

// Device is the peaks of a device and its losses. Without losses each op takes the time of its bound.
type Device struct {
	Peak
	OpSeconds     float64 `json:"op_seconds,omitempty"`     // time to launch each op
	StepSeconds   float64 `json:"step_seconds,omitempty"`   // time of the host for each step: scheduling
	OutputSeconds float64 `json:"output_seconds,omitempty"` // time of the host for each output: sampling, sending
	// RequestSeconds is the time of the host for each request, apart from its steps. It is part
	// of the time to its first token.
	RequestSeconds float64 `json:"request_seconds,omitempty"`
	SpillGBps      float64 `json:"spill_gbps,omitempty"`    // copies to the spill tier and back, 1e9 bytes/s; 0: 2, a local disk
	HandoverGBps   float64 `json:"handover_gbps,omitempty"` // copies to another worker, 1e9 bytes/s; 0: 1, a network of 10 Gbit/s
	// Tiles are devices like this one that share a model by tensor parallelism, see model.Split; 0: 1. Memory is that of one.
	Tiles        int     `json:"tiles,omitempty"`
	ExchangeGBps float64 `json:"exchange_gbps,omitempty"` // sums over tiles, 1e9 bytes/s; 0: GBps
	// Reached is the share of the bound that the ops of a kind (a name of model.OpKind) reach, by
	// their rows; the rows of attention are those of one sequence. Between two row counts the
	// logarithm is interpolated; outside them the nearest share applies. A share above 1 means
	// operands in a cache.
	Reached map[string][]Share `json:"reached,omitempty"`
}

// Share is bound / time of an op with Rows rows.
type Share struct {
	Rows  int     `json:"rows"`
	Share float64 `json:"share"`
}

// cpu is the machine of docs/md: two cores of an AMD EPYC, Zen 4, in a
// virtual machine.
func cpu() Peak {
	return Peak{ID: "cpu", Name: "two cores of an AMD EPYC (Zen 4)", GBps: 60, TFLOPS: 0.5, Memory: 25}
}

// DeviceNames returns the names of the devices that Find knows.
func DeviceNames() []string {
	names := []string{cpu().ID}
	for _, d := range Peaks() {
		names = append(names, d.ID)
	}
	return names
}

// Find returns the device of a name, see DeviceNames, with the default Behavior, or both as
// a file describes them, if the name ends in .json. "" and "auto" are the cpu.
func Find(name string) (Device, Behavior, error) {
	if strings.HasSuffix(name, ".json") {
		return readFile(name)
	}
	d, err := named(name)
	return d, defaultBehavior(), err
}

// named returns a device of DeviceNames. "" and "auto" are the cpu.
func named(name string) (Device, error) {
	if name == "" || name == "auto" || name == cpu().ID {
		return Device{Peak: cpu()}, nil
	}
	p, err := FindPeak(name)
	if err != nil {
		return Device{}, fmt.Errorf("%w: found %q, expected %s, or a file that ends in .json",
			ErrDevice, name, strings.Join(DeviceNames(), ", "))
	}
	return Device{Peak: p}, nil
}

// Validate returns an ErrDevice that names the first field at fault.
func (d *Device) Validate() error {
	for _, f := range []struct {
		name  string
		value float64
		least float64
	}{
		{"gbps", d.GBps, math.SmallestNonzeroFloat64},
		{"tflops", d.TFLOPS, math.SmallestNonzeroFloat64},
		{"tops", d.TOPS, 0},
		{"memory", d.Memory, 0},
		{"op_seconds", d.OpSeconds, 0},
		{"step_seconds", d.StepSeconds, 0},
		{"output_seconds", d.OutputSeconds, 0},
		{"request_seconds", d.RequestSeconds, 0},
		{"spill_gbps", d.SpillGBps, 0},
		{"handover_gbps", d.HandoverGBps, 0},
		{"tiles", float64(d.Tiles), 0},
		{"exchange_gbps", d.ExchangeGBps, 0},
	} {
		if !(f.value >= f.least && f.value <= 1e9) {
			return fmt.Errorf("%w: %s is %g, expected a number above 0 (0 too where it may be absent) and at most 1e9", ErrDevice, f.name,
				f.value)
		}
	}
	for kind, shares := range d.Reached {
		if !slices.Contains(model.OpNames(), kind) {
			return fmt.Errorf("%w: reached has %q, expected %s", ErrDevice, kind, strings.Join(model.OpNames(), ", "))
		}
		for i, s := range shares {
			if s.Rows < 1 || i > 0 && s.Rows <= shares[i-1].Rows || !(s.Share > 0 && s.Share <= 1e6) {
				return fmt.Errorf("%w: reached %s[%d] is %+v, expected rows in ascending order and a share above 0", ErrDevice, kind, i, s)
			}
		}
	}
	return nil
}

// reached returns the share of the bound that an op of a kind reaches with the given rows.
func (d *Device) reached(kind model.OpKind, rows int) float64 {
	shares := d.Reached[kind.String()]
	if len(shares) == 0 {
		return 1
	}
	i := slices.IndexFunc(shares, func(s Share) bool { return s.Rows >= rows })
	switch i {
	case -1:
		return shares[len(shares)-1].Share
	case 0:
		return shares[0].Share
	}
	low, high := shares[i-1], shares[i]
	part := math.Log(float64(rows)/float64(low.Rows)) / math.Log(float64(high.Rows)/float64(low.Rows))
	return low.Share * math.Pow(high.Share/low.Share, part)
}

// SpillSeconds is the time to copy bytes of keys and values to the spill tier, or back.
func (d *Device) SpillSeconds(bytes uint64) float64 {
	return float64(bytes) / 1e9 / cmp.Or(d.SpillGBps, 2)
}

// HandoverSeconds is the time to copy bytes of keys and values to another worker.
func (d *Device) HandoverSeconds(bytes uint64) float64 {
	return float64(bytes) / 1e9 / cmp.Or(d.HandoverGBps, 1)
}

// Share is what one of the tiles runs of a program. Errors: those of model.Split.
func (d *Device) Share(p *model.Program) (*model.Program, error) {
	shares, err := p.Split(max(1, d.Tiles))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.ID, err)
	}
	return shares[0], nil
}

// TotalMemory is the memory of all tiles, in bytes.
func (d *Device) TotalMemory() float64 { return d.Memory * 1e9 * float64(max(1, d.Tiles)) }

// String names the device for people.
func (d *Device) String() string {
	return fmt.Sprintf("%s, %g GB/s, %g TFLOP/s, %s per op", d.ID, d.GBps, d.TFLOPS, seconds(d.OpSeconds))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
