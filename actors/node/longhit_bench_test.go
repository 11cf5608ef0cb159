package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/tokenizer"
)

// longSlabs is the pool of these benchmarks, of 2.3 GiB: slabs of 100,000 tokens, and some for others.
const longSlabs = 6800

// longModel opens a model with the slabs of TinyLlama, 352 KiB, and little else.
func longModel(b *testing.B) *compute.Model {
	b.Helper()
	dir := b.TempDir()
	out, err := exec.Command("go", "run", "../../benchmarks/randmodel", "--out", dir, "--hidden", "256", "--heads", "4", "--ffn", "64",
		"--vocab", "4096").CombinedOutput()
	if err != nil {
		b.Fatal(err, string(out))
	}
	name := filepath.Join(dir, "config.json")
	raw, err := os.ReadFile(name)
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(strings.Replace(string(raw), `"max_position_embeddings": 16384`,
		`"max_position_embeddings": 131072`,
		1)), 0o644); err != nil {
		b.Fatal(err)
	}
	m, err := compute.Open(compute.Options{Dir: dir, MaxRows: 512, MaxOutputs: 8, KVMemory: longSlabs * 352 << 10, NoPacked: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(m.Close)
	return m
}

// scattered puts neighbors of the pool far from each other, as after many evictions.
func scattered(slabs []int32, pool int) []int32 {
	out := make([]int32, len(slabs))
	for i, id := range slabs {
		out[i] = int32(int(id) * 2999 % pool) // a prime
	}
	return out
}

// longRunner maps the slabs of a model, and computes nothing: a step takes as long as it says.
type longRunner struct {
	*compute.Model
	scatter bool
	step    time.Duration
	logits  []float32
}

type longRegion struct {
	compute.Region
	pool int
}

func (r longRegion) Append(slabs []int32) error { return r.Region.Append(scattered(slabs, r.pool)) }

func (r *longRunner) NewRegion(tokens int) (compute.Region, error) {
	region, err := r.Model.NewRegion(tokens)
	if err != nil || !r.scatter {
		return region, err
	}
	return longRegion{region, r.Slabs()}, nil
}

func (r *longRunner) CopySlab(int32, int32, int) error { return nil }
func (r *longRunner) Run([]compute.Rows) (compute.Logits, error) {
	time.Sleep(r.step) //nolint:forbidigo // the device's time, of a benchmark
	return r, nil
}
func (r *longRunner) Row(int) []float32    { return r.logits }
func (r *longRunner) Hidden(int) []float32 { return nil }

// BenchmarkLongHit is how long a stream waits for its next token, at most, while a request whose prompt is in the prefix cache
// begins and ends beside it: its slabs are mapped and unmapped. A step takes 2 ms.
func BenchmarkLongHit(b *testing.B) {
	m := longModel(b)
	tok, err := tokenizer.Load("../../models/tiny-chat")
	if err != nil {
		b.Fatal(err)
	}
	for _, scatter := range []bool{false, true} {
		for _, tokens := range []int{1000, 10000, 100000} {
			b.Run(fmt.Sprintf("scattered=%t/tokens=%d", scatter, tokens), func(b *testing.B) {
				r := &longRunner{Model: m, scatter: scatter, step: 2 * time.Millisecond, logits: make([]float32, m.Vocab())}
				r.logits[300] = 1
				p, err := New(Config{
					ModelID: "m", Model: r, Tokenizer: tok, Facts: api.WeightFacts{ContextLength: 131072},
					Sched: sched.Config{
						MaxBatchTokens: 1 << 20, MaxBatchSize: 8, MaxSequenceTokens: 131072, KV: kvmgr.NewSpec(16, kvmgr.Full{}),
						LeaseAheadTokens: 32,
					},
					Metrics: metrics.New(metrics.Build{}), Log: zerolog.Nop(),
				})
				if err != nil {
					b.Fatal(err)
				}
				defer p.Close(context.Background()) //nolint:errcheck // nothing is running
				benchmarkLongHit(b, p, tokens)
			})
		}
	}
}

func benchmarkLongHit(b *testing.B, p *Node, tokens int) {
	prompt := make([]int32, tokens)
	for i := range prompt {
		prompt[i] = int32(1 + i%4000)
	}
	long := func(id int) {
		s, err := p.Submit(context.Background(), tokensRequest(fmt.Sprint("long", id), prompt, 4))
		if err != nil {
			b.Fatal(err)
		}
		if _, last, err := read(s); err != nil || last.Err != nil {
			b.Fatal(err, last.Err)
		}
	}
	long(0)
	other, err := p.Submit(context.Background(), tokensRequest("other", []int32{1, 2, 3}, 6000))
	if err != nil {
		b.Fatal(err)
	}
	defer other.Close()
	gaps, begun, stop := make(chan time.Duration, 1<<16), make(chan struct{}), make(chan struct{})
	go gapsOf(other, gaps, begun, stop)
	<-begun
	var first, whole time.Duration
	for b.Loop() {
		begin := time.Now()
		s, err := p.Submit(context.Background(), tokensRequest("hit", prompt, 4))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.Next(context.Background()); err != nil {
			b.Fatal(err)
		}
		first += time.Since(begin)
		if _, _, err := read(s); err != nil {
			b.Fatal(err)
		}
		for p.kv.Stats().Regions > 1 {
			time.Sleep(100 * time.Microsecond) //nolint:forbidigo // a benchmark that polls costs the stream less than one that spins
		}
		whole += time.Since(begin)
	}
	close(stop)
	var all []time.Duration
	for g := range gaps {
		all = append(all, g)
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)-1].Microseconds())/1e3, "ms-most")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1e3, "ms-p99")
	b.ReportMetric(float64(first.Microseconds())/1e3/float64(b.N), "ms-first")
	b.ReportMetric(float64(whole.Microseconds())/1e3/float64(b.N), "ms-all")
}

// gapsOf sends the times between the tokens of a stream.
func gapsOf(s api.Stream, gaps chan<- time.Duration, begun, stop chan struct{}) {
	defer close(gaps)
	var last time.Time
	for n := 0; ; n++ {
		if _, err := s.Next(context.Background()); err != nil {
			return
		}
		now := time.Now()
		switch n {
		case 0:
		case 10:
			close(begun)
		default:
			if n > 10 {
				gaps <- now.Sub(last)
			}
		}
		last = now
		select {
		case <-stop:
			return
		default:
		}
	}
}

// BenchmarkMapping is the time to map the slabs of a hit in one go, of the first attention over them and of the next one, with the
// page faults of each, and to unmap them.
func BenchmarkMapping(b *testing.B) {
	m := longModel(b)
	for _, scatter := range []bool{false, true} {
		for _, tokens := range []int{1000, 10000, 100000} {
			b.Run(fmt.Sprintf("scattered=%t/tokens=%d", scatter, tokens), func(b *testing.B) {
				slabs := make([]int32, (tokens+15)/16)
				for i := range slabs {
					slabs[i] = int32(i)
				}
				if scatter {
					slabs = scattered(slabs, m.Slabs())
				}
				var took [4]time.Duration
				var faults [4]int64
				for b.Loop() {
					region, err := m.NewRegion(tokens)
					if err != nil {
						b.Fatal(err)
					}
					attend := func() error {
						_, err := m.Run([]compute.Rows{{Region: region, Tokens: []int32{1}, Position: tokens - 1, Output: true}})
						return err
					}
					for i, do := range []func() error{
						func() error { return region.Append(slabs) }, attend, attend, func() error { region.Close(); return nil },
					} {
						before, begin := minorFaults(b), time.Now()
						if err := do(); err != nil {
							b.Fatal(err)
						}
						took[i] += time.Since(begin)
						faults[i] += minorFaults(b) - before
					}
				}
				for i, name := range []string{"map", "first", "next", "unmap"} {
					b.ReportMetric(float64(took[i].Microseconds())/1e3/float64(b.N), "ms-"+name)
					b.ReportMetric(float64(faults[i])/float64(b.N), "faults-"+name)
				}
			})
		}
	}
}

func minorFaults(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Minflt
}
