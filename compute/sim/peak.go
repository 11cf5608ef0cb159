package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/model"
)

// Peak is the highest bandwidth and arithmetic rate of a device.
type Peak struct {
	ID     string  `json:"id"`
	Name   string  `json:"name"`
	GBps   float64 `json:"gbps"`             // memory bandwidth, 1e9 bytes/s
	TFLOPS float64 `json:"tflops"`           // products of 16-bit numbers (f16, bf16), 1e12/s
	TOPS   float64 `json:"tops,omitempty"`   // products of 8-bit integers; 0: unknown
	Memory float64 `json:"memory,omitempty"` // GB (1e9 bytes); 0: unknown
}

// Seconds is the least time that a device needs for an op.
func (p Peak) Seconds(c model.Cost) float64 {
	return max(p.MemorySeconds(c.Bytes()), p.ProductSeconds(c.Flops))
}

// MemorySeconds is the least time to move bytes from or to memory.
func (p Peak) MemorySeconds(bytes int64) float64 { return float64(bytes) / (p.GBps * 1e9) }

// ProductSeconds is the least time for a number of operations.
func (p Peak) ProductSeconds(flops int64) float64 { return float64(flops) / (p.TFLOPS * 1e12) }

// On is the peak as an op sees it: products with integer weights run at the peak of 8-bit
// integers, where that is known.
func (p Peak) On(op *model.Op) Peak {
	if op.Weights.Integers() && p.TOPS > 0 {
		p.TFLOPS = p.TOPS
	}
	return p
}

// Operations of an Xe-core's matrix engines (XMX) per clock on 16-bit numbers,
// a product and its sum counted as two; twice that on 8-bit integers. Source:
// Intel oneAPI GPU Optimization Guide, "Intel Xe GPU Architecture".
const (
	xeHPC = 8 * 512  // 8 engines of 4096 bits
	xeHPG = 16 * 128 // 16 engines of 1024 bits
	xe2   = 8 * 256  // 8 engines of 2048 bits
)

// matrix is an Intel GPU: its Xe-cores, their operations per clock and the
// highest clock of its product page, in GHz. Cards may boost above it.
func matrix(id, name string, cores, perClock, ghz, gbps, memory float64) Peak {
	return Peak{
		ID: id, Name: name, GBps: gbps, Memory: memory,
		TFLOPS: cores * perClock * ghz / 1e3, TOPS: 2 * cores * perClock * ghz / 1e3,
	}
}

// intelGPUs are those that the SYCL backend runs on. Cores, clock, bandwidth and memory come from
// the product pages of Intel (ark.intel.com).
func intelGPUs() []Peak {
	return []Peak{
		// 128 Xe-cores, 1600 MHz, 128 GB HBM2e at 3276.8 GB/s on two tiles. This is one.
		matrix("max-1550-tile", "Intel Data Center GPU Max 1550, one tile", 64, xeHPC, 1.6, 1638.4, 64),
		// 56 Xe-cores, 1550 MHz, 48 GB HBM2e at 1228.8 GB/s.
		matrix("max-1100", "Intel Data Center GPU Max 1100", 56, xeHPC, 1.55, 1228.8, 48),
		// 32 Xe-cores, 2050 MHz, 16 GB GDDR6 at 576 GB/s.
		matrix("flex-170", "Intel Data Center GPU Flex 170", 32, xeHPG, 2.05, 576, 16),
		// 32 Xe-cores, 2100 MHz, 16 GB GDDR6 at 560 GB/s.
		matrix("arc-a770", "Intel Arc A770", 32, xeHPG, 2.1, 560, 16),
		// 20 Xe-cores, 2670 MHz, 12 GB GDDR6 at 456 GB/s.
		matrix("arc-b580", "Intel Arc B580", 20, xe2, 2.67, 456, 12),
	}
}

// Peaks returns the built-in table: vendors' figures, none measured.
func Peaks() []Peak { return slices.Concat(intelGPUs(), nvidia(), processors()) }

// ByName finds the built-in Intel GPU by the name that its driver reports, such as "Intel(R) Arc(TM)
// A770 Graphics". Drivers report each tile of a Max 1550 as a device of its own.
func ByName(name string) (Peak, bool) {
	for _, d := range intelGPUs() {
		words := strings.Fields(strings.Split(d.Name, ",")[0])
		last := words[len(words)-1] // "1550", "A770"
		if strings.Contains(name, "Intel") && slices.Contains(strings.Fields(name), last) {
			return d, true
		}
	}
	return Peak{}, false
}

// FindPeak finds the built-in device with an ID.
func FindPeak(id string) (Peak, error) {
	devices := Peaks()
	if i := slices.IndexFunc(devices, func(d Peak) bool { return d.ID == id }); i >= 0 {
		return devices[i], nil
	}
	ids := make([]string, len(devices))
	for i, d := range devices {
		ids[i] = d.ID
	}
	return Peak{}, fmt.Errorf("no device %q in the table: it has %s", id, strings.Join(ids, ", "))
}
