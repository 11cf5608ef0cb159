package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/kvmgr"
)

// aheadDevice takes a step before it has done the one before. It does a step as late as it can, when its tokens are wanted: what its rows
// use, others may not have until then.
type aheadDevice struct {
	*testDevice
	unsaid int // it does not say the token of every unsaid-th output; 0: it says all

	// These are the worker goroutine's.
	started []startedStep
	last    []int32 // tokens of the last step that is done
	lie     int     // tokens on the device: outputs of the last step, if it was started
	outputs int     // so far

	counts sync.Mutex
	two    int // times that two steps were started
}

type startedStep struct {
	batch []compute.Rows
	draws []sample.Draw
}

func (d *aheadDevice) RunsAhead() bool { return true }

func (d *aheadDevice) Start(batch []compute.Rows, draws []sample.Draw) error {
	if d.started = append(d.started, startedStep{slices.Clone(batch), slices.Clone(draws)}); len(d.started) > 2 {
		return errors.New("three steps at a time")
	}
	outputs := 0
	for i := range batch { // the caller may change them
		d.started[len(d.started)-1].batch[i].Tokens = slices.Clone(batch[i].Tokens)
		for _, token := range batch[i].Tokens {
			if token < 0 && int(-1-token) >= d.lie {
				return fmt.Errorf("output %d of the step before, which left %d tokens", -1-token, d.lie)
			}
		}
		outputs += batch[i].Outputs()
	}
	d.lie = outputs
	if len(d.started) == 2 {
		d.counts.Lock()
		d.two++
		d.counts.Unlock()
	}
	return nil
}

func (d *aheadDevice) Drawn(tokens []int32) error {
	step := d.started[0]
	d.started = d.started[1:]
	outputs := 0
	for i := range step.batch {
		b := &step.batch[i]
		for j, token := range b.Tokens {
			if token < 0 {
				b.Tokens[j] = max(d.last[-1-token], 0)
			}
		}
		outputs += b.Outputs()
	}
	logits, err := d.testDevice.Run(step.batch)
	if err != nil {
		return err
	}
	if len(tokens) != outputs || len(step.draws) != 0 && len(step.draws) != outputs {
		return errors.New("other tokens than outputs")
	}
	for i := range tokens {
		var draw sample.Draw
		if len(step.draws) > 0 {
			draw = step.draws[i]
		}
		if tokens[i], err = draw.Token(logits.Row(i), new(sample.Scratch)); err != nil {
			return err
		}
		if d.outputs++; d.unsaid > 0 && d.outputs%d.unsaid == 0 {
			tokens[i] = -1
		}
	}
	d.last = slices.Clone(tokens)
	return nil
}

func (d *aheadDevice) Run(batch []compute.Rows) (compute.Logits, error) {
	if len(d.started) > 0 {
		return nil, errors.New("a step that waits for nobody while others are started")
	}
	d.lie = 0
	if d.unsaid > 0 { // the rows after it are there, and are computed again
		for i := range batch {
			r := batch[i].Region.(*testRegion)
			if end := r.length; end > batch[i].Position {
				r.drafts = end - batch[i].Position
				defer func() { r.length = end }()
			}
		}
	}
	return d.testDevice.Run(batch)
}

func (d *aheadDevice) Reload() error {
	d.started = nil
	return d.testDevice.Reload()
}

// TestAStepIsPlannedWhileAnotherIsInTheAir: every request gets its tokens, whatever ends beside it, and no slab changes hands while a row
// uses it.
func TestAStepIsPlannedWhileAnotherIsInTheAir(t *testing.T) {
	for _, test := range []struct {
		name   string
		device func(*aheadDevice)
		config func(*Config)
		two    int // steps that are started while another is in the air, at least
	}{
		{"plain", func(*aheadDevice) {}, func(*Config) {}, 5},
		{"unsaid", func(d *aheadDevice) { d.unsaid = 7 }, func(*Config) {}, 5},
		{"drafts beside few", func(*aheadDevice) {}, func(c *Config) { c.Sched.DraftRows = 4 }, 0},
		{"window", func(d *aheadDevice) { d.window, d.groups = 40, kvmgr.Counts{Full: 1, Windowed: 1} }, func(*Config) {}, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := &aheadDevice{testDevice: newTestDevice(64)} // 1,024 tokens: not all requests fit at once
			d.live = 8
			test.device(d)
			c := testConfig(t, d.testDevice)
			c.Model, c.Sched.KV = d, d.KV()
			test.config(&c)
			p := start(t, c)
			var wg sync.WaitGroup
			for i := range 120 {
				wg.Go(func() {
					prompt := make([]int32, 1+i*7%150)
					for j := range prompt {
						prompt[j] = int32((i*31 + j) % d.vocab)
					}
					n := 1 + i*13%60
					want := expected(d.testDevice, prompt, n)
					r := tokensRequest(fmt.Sprint(i), prompt, n)
					switch i % 6 {
					case 1: // it ends before its limit
						r.StopTokens = []int32{want[n/2]}
						want = want[:slices.Index(want, want[n/2])+1]
					case 2: // not all of its tokens are drawn by the device
						r.TopLogprobs = 1
					case 3:
						r.Sampling = sample.Params{Temperature: 0.01, Seed: uint64(i)}
					}
					s, err := p.Submit(context.Background(), r)
					if err != nil {
						t.Error(err)
						return
					}
					defer s.Close()
					if i%6 == 4 { // its reader goes away
						_, _ = s.Next(context.Background())
						return
					}
					got, last, err := read(s)
					if err = errors.Join(err, last.Err); err != nil || !slices.Equal(want, got) {
						t.Errorf("request %d: %v, expected %d tokens, found %d", i, err, len(want), len(got))
					}
				})
			}
			wg.Wait()
			requireClean(t, p, d.testDevice)
			d.counts.Lock()
			defer d.counts.Unlock()
			require.Greater(t, d.two, test.two)
		})
	}
}

// TestADeviceThatFailsInTheAir: the steps in the air are lost, and the next request finds a device that works.
func TestADeviceThatFailsInTheAir(t *testing.T) {
	d := &aheadDevice{testDevice: newTestDevice(64)}
	d.failAt = []int{9}
	c := testConfig(t, d.testDevice)
	c.Model = d
	p := start(t, c)
	s, err := p.Submit(context.Background(), tokensRequest("lost", []int32{1, 2, 3}, 40))
	require.NoError(t, err)
	got, last, err := read(s)
	require.NoError(t, err)
	var e *api.Error
	require.ErrorAs(t, last.Err, &e)
	require.Equal(t, api.CodeUnavailable, e.Code)
	require.LessOrEqual(t, len(got), 8)
	require.Equal(t, expected(d.testDevice, []int32{1, 2, 3}, len(got)), append([]int32{}, got...))
	s, err = p.Submit(context.Background(), tokensRequest("next", []int32{4, 5}, 20))
	require.NoError(t, err)
	got, _, err = read(s)
	require.NoError(t, err)
	require.Equal(t, expected(d.testDevice, []int32{4, 5}, 20), got)
	require.Equal(t, 1, d.reloaded())
	requireClean(t, p, d.testDevice)
}
