package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/cmd/millrace/datadir"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/logging"
	"github.com/millrace/millrace/tokenizer"
)

// minMapCount is the default of vm.max_map_count on Linux. Each used slab of the KV cache is a
// mapping.
const minMapCount = 65530

type doctorOptions struct {
	config.Device

	model, listen, natsListen, dataDir string
	measure, json                      bool
}

// report is what doctor prints.
type report struct {
	Version  string              `json:"version"`
	Machine  machine             `json:"machine"`
	Device   *device.Info        `json:"device,omitempty"`
	Measured *device.Measurement `json:"measured,omitempty"`
	Numerics string              `json:"numerics,omitempty"` // digest of the model as it was loaded
	Class    string              `json:"class,omitempty"`    // of its kernels
	Checks   []check             `json:"checks"`
	OK       bool                `json:"ok"`
}

type status string

const (
	statusOK   status = "ok"
	statusWarn status = "warn" // works, but slower or not at once
	statusFail status = "fail"
)

type check struct {
	Name   string `json:"name"`
	Status status `json:"status"`
	Detail string `json:"detail"`
}

func newDoctor() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine, and a model on it",
		Long: `Print what Millrace finds on this machine (processor, instruction sets, threads, memory and their
limits) and check what a server needs. The exit code is 1 if a check fails; warnings leave it 0.`,
		Example: `  millrace doctor
  millrace doctor --model DIR --measure --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return err
			}
			r := examine(cmd.Context(), o)
			return errors.Join(printReport(cmd.OutOrStdout(), r, o.json), r.err())
		},
	}
	takesModel(cmd)
	f := cmd.Flags()
	o.Register(f)
	config.RegisterModel(f, &o.model)
	f.StringVar(&o.listen, "listen", "127.0.0.1:8080", "address of the HTTP server, HOST:PORT")
	f.StringVar(&o.natsListen, "nats-listen", "127.0.0.1:4222", "address of the embedded NATS server, HOST:PORT")
	f.StringVar(&o.dataDir, "data-dir", "data", "directory for data that outlives the process")
	f.BoolVar(&o.measure, "measure", false, "measure memory bandwidth and arithmetic, which takes some seconds on all threads")
	jsonFlag(cmd, &o.json)
	return cmd
}

// err names the checks that failed.
func (r *report) err() error {
	var failed []string
	for _, c := range r.Checks {
		if c.Status == statusFail {
			failed = append(failed, c.Name)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
}

func (r *report) add(name string, s status, format string, args ...any) {
	r.Checks = append(r.Checks, check{Name: name, Status: s, Detail: fmt.Sprintf(format, args...)})
}

func examine(ctx context.Context, o doctorOptions) *report {
	r := &report{Version: version, Machine: probe(os.DirFS("/"))}
	r.checkKernelSettings()
	r.checkAddress(ctx, "http address", o.listen, "--listen")
	r.checkAddress(ctx, "nats address", o.natsListen, "--nats-listen, or --nats to join what runs there")
	r.checkDataDir(o.dataDir)
	for _, backend := range device.Optional() {
		r.checkOptional(backend)
	}
	r.checkIntelGPUs(os.DirFS("/"), openDevice)
	r.checkDevice(o)
	r.OK = r.err() == nil
	return r
}

func (r *report) checkKernelSettings() {
	switch m := r.Machine; {
	case m.MaxMapCount == 0:
		r.add("vm.max_map_count", statusWarn, "unknown")
	case m.MaxMapCount < minMapCount:
		r.add("vm.max_map_count", statusWarn, "found %d, expected %d or more: it bounds the KV slabs in use", m.MaxMapCount, minMapCount)
	default:
		r.add("vm.max_map_count", statusOK, "%d", m.MaxMapCount)
	}
	switch r.Machine.HugePages {
	case "always", "madvise":
		r.add("huge pages", statusOK, "%s", r.Machine.HugePages)
	case "":
		r.add("huge pages", statusWarn, "unknown")
	default:
		r.add("huge pages", statusWarn, "%s: weights are read slower than with madvise", r.Machine.HugePages)
	}
}

// checkAddress tries to listen. An address in use is only a warning: the server itself may use it.
func (r *report) checkAddress(ctx context.Context, name, address, other string) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case err == nil:
		l.Close()
		r.add(name, statusOK, "%s is free", address)
	case errors.Is(err, unix.EADDRINUSE):
		r.add(name, statusWarn, "%s is in use; choose another one with %s", address, other)
	default:
		r.add(name, statusFail, "%v", err)
	}
}

// checkDataDir checks that dir, or the nearest existing folder above it, is writable. It creates
// nothing.
func (r *report) checkDataDir(dir string) {
	at, err := filepath.Abs(dir)
	if err != nil {
		r.add("data directory", statusFail, "%v", err)
		return
	}
	for at != "/" {
		if _, err := os.Stat(at); !errors.Is(err, os.ErrNotExist) {
			break
		}
		at = filepath.Dir(at)
	}
	if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
		r.add("data directory", statusFail, "%s: cannot write to %s: %v", dir, at, err)
		return
	}
	if h := datadir.HolderOf(dir); h != nil {
		r.add("data directory", statusWarn, "%s is held by %s; a second server needs another --data-dir", dir, h)
		return
	}
	r.add("data directory", statusOK, "%s can be written", dir)
}

// gpuDriver is what a machine needs beside the library of an optional backend.
var gpuDriver = map[string]string{
	"sycl": "neither an Intel GPU nor the CPU device of the runtime (make sycl fetches it)",
	"cuda": "install the NVIDIA driver, which has libcuda.so.1 (nvidia-smi lists the GPUs)",
}

// checkOptional lists the devices of a backend that is a shared library.
func (r *report) checkOptional(backend string) {
	path, err := device.FindLibrary(backend)
	if err != nil {
		r.add(backend, statusWarn, "%v", err)
		return
	}
	devices, err := device.DescribeDevices(path)
	switch {
	case err != nil:
		r.add(backend, statusWarn, "%v", err)
	case len(devices) == 0:
		r.add(backend, statusWarn, "%s finds no device: %s", path, gpuDriver[backend])
	}
	for _, d := range devices {
		r.add(backend, statusOK, "%s", d)
	}
}

func (r *report) checkDevice(o doctorOptions) {
	d, err := device.Open(deviceOptions(o.Device))
	if err != nil {
		r.add("device", statusFail, "%v", err)
		return
	}
	defer d.Close()
	info, err := d.Info()
	if err != nil {
		r.add("device", statusFail, "%v", err)
		return
	}
	r.Device = &info
	ranks := ""
	if n := d.Ranks(); n > 1 {
		ranks = fmt.Sprintf(" of %d ranks", n)
	}
	r.add("device", statusOK, "%s, %s, %d threads%s", info.Backend, info.ISA, info.Threads, ranks)

	if o.measure {
		m, err := d.Measure()
		if err != nil {
			r.add("measure", statusFail, "%v", err)
			return
		}
		r.Measured = &m
		r.add("measure", statusOK, "read %.1f GB/s, products %.0f GFLOP/s", m.ReadGBps, m.PeakGFLOPS)
	}
	d.Close() // the model opens its own
	r.checkModel(&o)
}

// checkModel loads the model as serve would, for one short sequence.
func (r *report) checkModel(o *doctorOptions) {
	dir, err := modelDir(o.model)
	if err != nil {
		r.add("model", statusFail, "%v", err)
		return
	}
	options, err := modelOptions(dir, o.Device)
	if err != nil {
		r.add("model", statusFail, "%v", err)
		return
	}
	options.MaxRows, options.MaxOutputs, options.MaxSequences, options.MaxTokens = device.SlabTokens, 1, 1, 1
	m, err := compute.Open(options)
	if err != nil {
		r.add("model", statusFail, "%v", err)
		return
	}
	defer m.Close()
	if !r.checkTokenizer(dir, m.Program.Vocab) {
		return
	}
	info, n := m.Engine().Info(), m.Numerics()
	r.Numerics, r.Class = n.Digest(), n.Class
	r.add("model", statusOK, "%s: %s, %d layers, weights %s, a KV slab of %d tokens %s (%s), linear ops by %s",
		dir, m.Program.Architecture, m.Program.Layers, amount(info.WeightBytes), device.SlabTokens, amount(info.SlabBytes), info.KVType,
		info.Linear)
	r.add("numerics", statusOK, "%s (%s): streams continue at processes with the same", r.Numerics, r.Class)
}

// checkTokenizer says whether serve can open the tokenizer of a model.
func (r *report) checkTokenizer(dir string, vocab int) bool {
	t, err := tokenizer.LoadOrBare(dir, vocab)
	if err != nil {
		r.add("tokenizer", statusFail, "%v", err)
		return false
	}
	defer t.Close() //nolint:errcheck // nothing was written
	switch err := t.NoText(); {
	case err != nil:
		r.add("tokenizer", statusWarn, "%v", err)
	case !t.HasChatTemplate():
		r.add("tokenizer", statusWarn, "%d tokens, no chat template: chats are refused, completions are served", t.VocabSize())
	default:
		r.add("tokenizer", statusOK, "%d tokens, a chat template", t.VocabSize())
	}
	return true
}

// amount is a number of bytes for people: "1.5 GiB".
func amount[T int64 | uint64](bytes T) string { return logging.Size(bytes) }

func printReport(w io.Writer, r *report, asJSON bool) error {
	if asJSON {
		return printJSON(w, r)
	}
	m := r.Machine
	lines := [][2]string{
		{"version", r.Version},
		{"kernel", m.Kernel},
		{"processor", m.CPU},
		{"cores", fmt.Sprint(m.Cores)},
		{"memory", fmt.Sprintf("%s, available %s", amount(m.MemoryBytes), amount(m.AvailableBytes))},
	}
	if m.CgroupCPUs > 0 {
		lines = append(lines, [2]string{"cgroup CPUs", fmt.Sprintf("%.2f", m.CgroupCPUs)})
	}
	if m.CgroupBytes > 0 {
		lines = append(lines, [2]string{"cgroup memory", amount(m.CgroupBytes)})
	}
	if r.Device != nil {
		lines = append(lines, [2]string{"instruction sets", strings.Join(r.Device.ISAs, ", ")})
	}
	for _, l := range lines {
		if _, err := fmt.Fprintf(w, "%-18s %s\n", l[0], l[1]); err != nil {
			return err
		}
	}
	for _, c := range r.Checks {
		if _, err := fmt.Fprintf(w, "%-4s  %-16s %s\n", c.Status, c.Name, c.Detail); err != nil {
			return err
		}
	}
	return nil
}
