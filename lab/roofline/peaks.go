package roofline

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/sim"
)

// ThisCPU names the device whose limits are measured, not looked up.
const ThisCPU = "this-cpu"

// ErrUnknownDevice is a name that Peaks does not know.
var ErrUnknownDevice = errors.New("unknown device")

// Peaks are the peaks of a device of the table, of ThisCPU, or of all.
func Peaks(name string) ([]sim.Peak, error) {
	switch name {
	case "all":
		cpu, err := measureThisCPU()
		return append(sim.Peaks(), cpu), err
	case ThisCPU:
		cpu, err := measureThisCPU()
		return []sim.Peak{cpu}, err
	}
	d, err := sim.FindPeak(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w, %s and all", ErrUnknownDevice, err, ThisCPU)
	}
	return []sim.Peak{d}, nil
}

// cpuSamples of the CPU's limits: other guests of the machine can only make one
// look lower, so the largest count.
const cpuSamples = 5

// measureThisCPU takes a second or more of all cores.
func measureThisCPU() (sim.Peak, error) {
	d, err := device.Open(device.Options{Backend: "cpu"})
	if err != nil {
		return sim.Peak{}, err
	}
	defer d.Close()
	info, err := d.Info()
	if err != nil {
		return sim.Peak{}, err
	}
	cpu := sim.Peak{ID: ThisCPU, Name: info.Name + ", measured", Memory: float64(info.MemoryTotal) / 1e9}
	for range cpuSamples {
		m, err := d.Measure()
		if err != nil {
			return sim.Peak{}, err
		}
		cpu.GBps, cpu.TFLOPS = max(cpu.GBps, m.ReadGBps), max(cpu.TFLOPS, m.PeakGFLOPS/1e3)
	}
	return cpu, nil
}
