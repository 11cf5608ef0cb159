// Package plan is the work of millrace plan: how many users of a model fit on a device, how fast each is
// served, and for which price, before anything is loaded. It must not know flags, and it measures nothing.
package plan

import (
	"errors"
	"fmt"
	"math"
	"sort"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/kvmgr"
)

// ErrRequest is a request that the model cannot serve, or sizes that are none.
var ErrRequest = errors.New("invalid request")

const (
	// MostUsers bounds the users whose steps are timed.
	MostUsers = 4096
	// stepRows is the default of --max-batch-tokens: prompts are computed in steps of as many tokens.
	stepRows = 512
	// contexts is the number of decode steps, evenly between first and last, whose mean time counts.
	contexts = 16
)

// Options say what to plan.
type Options struct {
	Model    Model
	Devices  []sim.Device
	Prices   []float64      // of each device per hour; nil: none is known
	Request  kvmgr.Segments // of each user
	KVMemory uint64         // bytes of the KV pool; 0: what weights leave of 90% of the device's memory
	TPOT     float64        // bound of the time per token, in seconds; 0: none
}

// Report is a plan.
type Report struct {
	Notice      string `json:"notice"`
	Model       string `json:"model"`
	KVType      string `json:"kv_type"`
	WeightBytes uint64 `json:"weight_bytes"`
	TokenBytes  uint64 `json:"kv_bytes_per_token"` // equation (1), with the scales of integer types
	SlabBytes   uint64 `json:"slab_bytes"`         // of 16 tokens, in whole pages

	Prompt        int     `json:"prompt"`
	Gen           int     `json:"gen"`
	Beams         int     `json:"beams"`
	RequestSlabs  int     `json:"request_slabs"` // at its end, or with a window the most at once
	RequestBytes  uint64  `json:"request_bytes"`
	StandardBytes uint64  `json:"standard_bytes"` // equation (2): each beam with a prompt of its own
	TPOT          float64 `json:"tpot_bound_seconds"`

	Devices []Fit `json:"devices"`
}

// Fit is the model on one device.
type Fit struct {
	Device sim.Device `json:"device"`
	Price  float64    `json:"price_per_hour,omitempty"`
	// Misfit says why not even one request fits. "": Users has at least one row.
	Misfit   string  `json:"misfit,omitempty"`
	Slabs    int     `json:"slabs"`
	Requests int     `json:"requests"`       // that the KV pool holds at once: BSmax
	Prefill  float64 `json:"prompt_seconds"` // of one prompt
	Users    []Point `json:"users"`
	Within   *Point  `json:"within,omitempty"` // most users within the bound of TPOT; nil: not even one
}

// Point is a number of users who are served together.
type Point struct {
	Users           int     `json:"users"`
	KVBytes         uint64  `json:"kv_bytes"`     // at the end of all requests
	TTFT            float64 `json:"ttft_seconds"` // of the last one, if all prompts arrive at once
	TPOT            float64 `json:"tpot_seconds"` // mean of the decode steps
	TokensPerSecond float64 `json:"tokens_per_second"`
	PricePerMillion float64 `json:"price_per_million_tokens,omitempty"`
}

// Each is the speed of the answer of one user, in tokens per second.
func (p *Point) Each() float64 { return 1 / p.TPOT }

// Make plans. Errors: ErrRequest.
func Make(o Options) (*Report, error) {
	r, p := o.Request, o.Model.Program
	if r.Prompt < 1 || r.Response < 1 || r.Beams < 1 {
		return nil, fmt.Errorf("%w: %d + %d tokens, %d beams: expected at least 1 of each", ErrRequest, r.Prompt, r.Response, r.Beams)
	}
	if r.Prompt > p.MaxPositions || r.Response > p.MaxPositions-r.Prompt {
		return nil, fmt.Errorf("%w: %d + %d tokens, the model's context is %d", ErrRequest, r.Prompt, r.Response, p.MaxPositions)
	}
	token := uint64(p.KVBytesPerToken(model.BF16Sizes()))
	report := &Report{
		Notice: notice(o.Devices), Model: o.Model.Name, KVType: p.KV.String(), WeightBytes: o.Model.weightBytes(), TokenBytes: token,
		SlabBytes: sim.SlabBytes(p), Prompt: r.Prompt, Gen: r.Response, Beams: r.Beams, TPOT: o.TPOT,
		RequestSlabs: Slabs(r, o.kv(math.MaxInt)), StandardBytes: kvmgr.StandardBytes(r, 1, token),
	}
	report.RequestBytes = uint64(report.RequestSlabs) * report.SlabBytes
	for i, d := range o.Devices {
		f := Fit{Device: d}
		if _, err := d.Share(p); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRequest, err)
		}
		if i < len(o.Prices) {
			f.Price = o.Prices[i]
		}
		if err := o.fit(&f); err != nil {
			return nil, err
		}
		report.Devices = append(report.Devices, f)
	}
	return report, nil
}

// fit fills f from its device.
func (o *Options) fit(f *Fit) (err error) {
	f.Slabs, err = o.slabs(&f.Device)
	if errors.Is(err, kvmgr.ErrNoMemory) {
		f.Misfit = o.shortage(&f.Device)
		return nil
	}
	if err != nil {
		return err
	}
	kv := o.kv(f.Slabs)
	f.Requests = Requests(f.Slabs, o.Request, kv)
	if f.Requests == 0 {
		f.Misfit = fmt.Sprintf("a request takes %d slabs, the KV cache has %d", Slabs(o.Request, kv), f.Slabs)
		return nil
	}
	most := min(f.Requests, MostUsers/o.Request.Beams)
	t := timing{o: o, fit: f, clock: o.Model.newClock(f.Device, max(stepRows, most*o.Request.Beams), o.Request.Beams)}
	f.Prefill = t.prefill(1)
	for users := 1; users < most; users *= 2 {
		f.Users = append(f.Users, t.point(users))
	}
	f.Users = append(f.Users, t.point(most))
	within := most
	if o.TPOT > 0 {
		within = sort.Search(most, func(i int) bool { return t.tpot(i+1) > o.TPOT })
	}
	if within > 0 {
		p := t.point(within)
		f.Within = &p
	}
	return nil
}

// kv is what a request keeps in a pool.
func (o *Options) kv(pool int) kvmgr.Spec {
	return compute.KV(o.Model.Program, device.ProgramInfo{}, stepRows, pool)
}

// shortage says why a device has no room for a slab.
func (o *Options) shortage(d *sim.Device) string {
	slab := size(sim.SlabBytes(o.Model.Program))
	if o.KVMemory > 0 {
		return fmt.Sprintf("a slab of 16 tokens takes %s, the KV cache has %s", slab, size(o.KVMemory))
	}
	return fmt.Sprintf("weights of %s and %s for 16 tokens, expected at most %s, %.0f%% of its memory",
		size(o.Model.weightBytes()), slab, size(uint64(d.TotalMemory()*sim.MemoryShare)), 100*sim.MemoryShare)
}

// slabs is the size of the KV pool of a device.
func (o *Options) slabs(d *sim.Device) (int, error) {
	if o.KVMemory > 0 {
		return kvmgr.SlabsIn(o.KVMemory, sim.SlabBytes(o.Model.Program))
	}
	if d.Memory == 0 {
		return 0, fmt.Errorf("%w: the memory of the device %s is unknown: expected \"memory\" in its file, or --kv-memory", ErrRequest,
			d.ID)
	}
	return kvmgr.SizePool(uint64(d.TotalMemory()*sim.MemoryShare), o.Model.weightBytes(), 0, 1, sim.SlabBytes(o.Model.Program))
}

// timing times the requests of a plan on a device.
type timing struct {
	o     *Options
	fit   *Fit
	clock clock
}

// prefill is the time of the prompts of users, in steps of at most stepRows tokens.
func (t *timing) prefill(users int) (seconds float64) {
	prompt := t.o.Request.Prompt
	if together := stepRows / prompt; together > 0 {
		if full := users / together; full > 0 {
			seconds = float64(full) * t.clock.prefill(together, 0, prompt)
		}
		if rest := users % together; rest > 0 {
			seconds += t.clock.prefill(rest, 0, prompt)
		}
		return seconds
	}
	for past := 0; past < prompt; past += stepRows {
		seconds += t.clock.prefill(1, past, min(stepRows, prompt-past))
	}
	return seconds * float64(users)
}

// tpot is the mean time of the decode steps.
func (t *timing) tpot(users int) (seconds float64) {
	r := t.o.Request
	n := min(contexts, r.Response)
	for i := range n {
		past := r.Prompt + int((float64(i)+0.5)*float64(r.Response)/float64(n))
		seconds += t.clock.decode(users, past, r.Prompt)
	}
	return seconds / float64(n)
}

// point times users who are served together.
func (t *timing) point(users int) Point {
	r := t.o.Request
	p := Point{
		Users: users, TTFT: t.prefill(users), TPOT: t.tpot(users),
		KVBytes: uint64(users*Slabs(r, t.o.kv(t.fit.Slabs))) * sim.SlabBytes(t.o.Model.Program),
	}
	p.TokensPerSecond = Throughput(users, r.Response, p.TTFT+float64(r.Response-1)*p.TPOT)
	if t.fit.Price > 0 {
		p.PricePerMillion = PricePerMillion(t.fit.Price, p.TokensPerSecond)
	}
	return p
}

// notice says what the times of the devices are.
func notice(devices []sim.Device) string {
	for _, d := range devices {
		if len(d.Reached) == 0 {
			return "ESTIMATE from counted bytes and flops at peak rates, which real steps do not reach."
		}
	}
	return "ESTIMATE from counted bytes and flops at the measured rates of the device."
}
