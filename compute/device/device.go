// Package device runs op programs on a compute backend through the C ABI of
// kernels/include/millrace_kernels.h. It is the one package that calls
// kernels.
//
// Open -> Load -> ReserveKV -> NewRegion -> Run ... -> Close. One goroutine at a time uses an Engine
// and its regions.
//
// It must not know where weights come from or what a token means.
package device

/*
#cgo CFLAGS: -I${SRCDIR}/../../kernels/include
#cgo LDFLAGS: -L${SRCDIR}/../../build/lib -lmillrace_kernels -lstdc++ -lpthread -lm -ldl
#include "backend.h"
*/
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unsafe"
)

// Errors of a backend, wrapped with its message.
var (
	ErrInvalid     = errors.New("invalid")
	ErrNoMemory    = errors.New("out of memory")
	ErrUnsupported = errors.New("unsupported")
	ErrDevice      = errors.New("device failure")
)

// Options choose a backend.
type Options struct {
	Backend string // "cpu" (also ""), "ref", "sycl", "cuda"
	Threads int    // 0: every core that the process may use
	Ranks   int    // parts of the device, each with a share of the threads, among which programs are split; 0: 1
	ISA     string // "": the best that the machine has
	DType   string // of products and KV cache: "f16", "bf16" or "f32", whatever the backend has; "auto" (also "") is the backend's choice
	Device  string // of an optional backend: "auto" (also ""); of sycl "cpu", "gpu", "level_zero:0"; of cuda "cuda:0"
	Library string // of an optional backend: the shared library's path; "": see FindLibrary
	Profile bool   // RunTimed takes the device's own clock; launches cost a little more
}

// Device is an open backend.
type Device struct {
	backend *C.mr_backend
	handle  *C.mr_device
	ranks   int
}

// Info describes a device.
type Info struct {
	Backend         string   `json:"backend"`
	Name            string   `json:"name"`
	ISA             string   `json:"isa"`
	ISAs            []string `json:"isas"` // best first
	Threads         int      `json:"threads"`
	OnCPU           bool     `json:"on_cpu"`           // the machine's own cores compute
	KeepsBlocks     bool     `json:"keeps_blocks"`     // weights may stay in the blocks of a file
	MemoryTotal     uint64   `json:"memory_total"`     // bytes
	MemoryAvailable uint64   `json:"memory_available"` // bytes
}

// Measurement is what a device can reach at most, measured now.
type Measurement struct {
	ReadGBps   float64 `json:"read_gbps"`                // 1e9 bytes/s, all threads
	PeakGFLOPS float64 `json:"peak_gflops"`              // products of the operand type, all threads
	PeakInt8   float64 `json:"peak_int8_gops,omitempty"` // of int8 codes; 0: not measured
}

// Backends lists the names that Open takes.
func Backends() []string { return append([]string{"cpu", "ref"}, Optional()...) }

// OnCaller says whether a backend computes on the thread that calls it, beside threads of its own.
func OnCaller(backend string) bool { return backend == "cpu" || backend == "ref" }

// dtypes are the types of products and KV cache that a backend has beside "auto".
var dtypes = map[string]map[string]C.int32_t{
	"":     {"bf16": 0},
	"cpu":  {"bf16": 0},
	"ref":  {"f32": 0},
	"sycl": {"bf16": C.MR_BF16, "f16": C.MR_F16},
	"cuda": {"bf16": C.MR_BF16, "f16": C.MR_F16},
}

// operands is the mr_device_config.operands of a type's name.
func operands(backend, name string) (C.int32_t, error) {
	if name == "" || name == "auto" {
		return 0, nil
	}
	have := dtypes[backend]
	t, ok := have[name]
	if !ok {
		names := slices.Sorted(maps.Keys(have))
		return 0, fmt.Errorf("%w dtype %q: backend %s has auto, %s", ErrUnsupported, name, cmp.Or(backend, "cpu"),
			strings.Join(names, ", "))
	}
	return t, nil
}

// Open opens a device of the backend that o names.
func Open(o Options) (*Device, error) {
	var b *C.mr_backend
	var err error
	switch {
	case o.Backend == "" || o.Backend == "cpu":
		b = C.millrace_backend_cpu()
	case o.Backend == "ref":
		b = C.millrace_backend_ref()
	case IsOptional(o.Backend):
		if b, err = loadBackend(o.Backend, o.Library); err != nil {
			return nil, fmt.Errorf("backend %s: %w", o.Backend, err)
		}
	default:
		return nil, fmt.Errorf("%w backend %q: have %s", ErrUnsupported, o.Backend, strings.Join(Backends(), ", "))
	}
	if b.abi_version != C.MR_ABI_VERSION {
		return nil, fmt.Errorf("%w: backend %s has ABI version %d, expected %d",
			ErrUnsupported, C.GoString(b.name), b.abi_version, C.MR_ABI_VERSION)
	}
	if o.Threads < 0 {
		return nil, fmt.Errorf("%w: threads %d, expected 0 or more", ErrInvalid, o.Threads)
	}
	if o.Ranks < 0 {
		return nil, fmt.Errorf("%w: ranks %d, expected 0 or more", ErrInvalid, o.Ranks)
	}
	cfg := C.mr_device_config{threads: C.int32_t(o.Threads), profile: flag(o.Profile), ranks: C.int32_t(o.Ranks)}
	if cfg.operands, err = operands(o.Backend, o.DType); err != nil {
		return nil, err
	}
	if err := setString(cfg.isa[:], o.ISA, "ISA"); err != nil {
		return nil, err
	}
	if err := setString(cfg.device[:], o.Device, "device"); err != nil {
		return nil, err
	}
	d := &Device{backend: b, ranks: max(1, o.Ranks)}
	var e C.mr_error
	if C.mr_device_open(b, &cfg, &d.handle, &e) != C.MR_OK {
		return nil, fail("open device", &e)
	}
	return d, nil
}

// Close frees the device. Its engines must be closed before.
func (d *Device) Close() {
	if d.handle != nil {
		C.mr_device_close(d.backend, d.handle)
		d.handle = nil
	}
}

// Ranks is the number of ranks.
func (d *Device) Ranks() int { return d.ranks }

// Info describes the device and the memory it has now.
func (d *Device) Info() (Info, error) {
	var i C.mr_device_info
	var e C.mr_error
	if C.mr_device_get_info(d.backend, d.handle, &i, &e) != C.MR_OK {
		return Info{}, fail("device info", &e)
	}
	return Info{
		Backend:         C.GoString(d.backend.name),
		Name:            C.GoString(&i.name[0]),
		ISA:             C.GoString(&i.isa[0]),
		ISAs:            strings.Split(C.GoString(&i.isas[0]), ","),
		Threads:         int(i.threads),
		OnCPU:           i.on_cpu != 0,
		KeepsBlocks:     i.keeps_blocks != 0,
		MemoryTotal:     uint64(i.memory_total),
		MemoryAvailable: uint64(i.memory_available),
	}, nil
}

// Measure measures the limits of the machine; it takes a second or more and
// keeps every core busy.
func (d *Device) Measure() (Measurement, error) {
	var m C.mr_measurement
	var e C.mr_error
	if C.mr_device_run_measure(d.backend, d.handle, &m, &e) != C.MR_OK {
		return Measurement{}, fail("measure device", &e)
	}
	return Measurement{ReadGBps: float64(m.read_gbps), PeakGFLOPS: float64(m.peak_gflops), PeakInt8: float64(m.peak_int8_gops)}, nil
}

// fail makes an error of a backend's report.
func fail(doing string, e *C.mr_error) error {
	kind := ErrDevice
	switch e.status {
	case C.MR_INVALID:
		kind = ErrInvalid
	case C.MR_NO_MEMORY:
		kind = ErrNoMemory
	case C.MR_UNSUPPORTED:
		kind = ErrUnsupported
	}
	return fmt.Errorf("%s: %w: %s", doing, kind, C.GoString(&e.message[0]))
}

// setString copies s and a terminating zero into a C array.
func setString(dst []C.char, s, what string) error {
	if len(s) >= len(dst) {
		return fmt.Errorf("%w: %s name of %d bytes, expected fewer than %d", ErrInvalid, what, len(s), len(dst))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&dst[0])), len(dst)), s)
	return nil
}
