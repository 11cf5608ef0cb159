package measure

import (
	"strings"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/sim"
)

// Roof is what a device's ops are compared with.
type Roof struct {
	Source  string // for people
	Measure func() (device.Measurement, error)
	native  *device.Device // nil: none of its own
}

// OpenRoof finds the limits of a device. A GPU of the built-in table has those
// of the table. The processor has what the cpu backend measures, for every
// backend that runs on it; any other device what its own backend measures.
func OpenRoof(d *device.Device, info device.Info) (*Roof, error) {
	if known, ok := sim.ByName(info.Name); ok {
		m := device.Measurement{ReadGBps: known.GBps, PeakGFLOPS: 1e3 * known.TFLOPS, PeakInt8: 1e3 * known.TOPS}
		return &Roof{
			Source:  "limits of the built-in table, " + known.ID,
			Measure: func() (device.Measurement, error) { return m, nil },
		}, nil
	}
	return measuredRoof(d, info)
}

// measuredRoof measures the limits: of the processor by the cpu backend, of any other device by the device itself.
func measuredRoof(d *device.Device, info device.Info) (*Roof, error) {
	roof := &Roof{Source: "limits, measured between the steps", Measure: d.Measure}
	if !device.IsOptional(info.Backend) {
		return roof, nil
	}
	native, err := device.Open(device.Options{Backend: "cpu", Threads: info.Threads})
	if err != nil {
		return nil, err
	}
	cpu, err := native.Info()
	if err != nil || !strings.HasPrefix(info.Name, cpu.Name+" (") { // another device
		native.Close()
		return roof, err
	}
	roof.native, roof.Measure = native, native.Measure
	return roof, nil
}

// Close frees what OpenRoof opened.
func (r *Roof) Close() {
	if r.native != nil {
		r.native.Close()
	}
}
