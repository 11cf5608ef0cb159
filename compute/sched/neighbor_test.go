package sched

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/kvmgr"
)

// service is a device in virtual time and its load. A step takes a fixed time and more for each of
// its rows. Lengths are log-normal.
type service struct {
	step, decode, prompt    time.Duration
	promptTokens, newTokens float64 // medians
	spread                  float64 // of their logarithms
	chunk                   int
	neighbor                float64 // its load, of the capacity
	ratio                   float64 // Config.WaitingServedRatio
}

var (
	// Weights take most of a step's time, so that rows come nearly free.
	bandwidth = service{
		step: 8 * time.Millisecond, decode: 30 * time.Microsecond, prompt: 30 * time.Microsecond,
		promptTokens: 200, newTokens: 100, spread: 0.75, chunk: 128, neighbor: 0.45,
	}
	// A model of 7 million parameters on one core: rows are what takes time.
	smallModel = service{
		step: 700 * time.Microsecond, decode: 230 * time.Microsecond, prompt: 80 * time.Microsecond,
		promptTokens: 110, newTokens: 60, spread: 0.4, chunk: 256, neighbor: 0.6,
	}
)

// takes is the time of a step.
func (d service) takes(p *Plan) Time {
	return d.step + Time(p.DecodeRows)*d.decode + Time(p.PromptRows)*d.prompt
}

// poisson makes the requests of a tenant: random arrivals at a rate (1/s),
// log-normal lengths. They do not depend on other tenants.
func (d service) poisson(tenant string, weight int, rate float64, until Time, seed uint64) []Sequence {
	rng := rand.New(rand.NewPCG(seed, 7))
	length := func(median float64, most int) int {
		return min(max(int(median*math.Exp(d.spread*rng.NormFloat64())), 1), most)
	}
	var out []Sequence
	for at := 0.0; ; {
		at += rng.ExpFloat64() / rate
		if at > until.Seconds() {
			return out
		}
		out = append(out, Sequence{
			ID: ID(uint64(len(out)+1)<<8 | seed), Tenant: tenant, Weight: weight, Arrival: Time(at * 1e9),
			PromptTokens: length(d.promptTokens, 3000), MaxNewTokens: length(d.newTokens, 1000),
		})
	}
}

// outcome is what a tenant got.
type outcome struct {
	ttft    []Time
	tpot    []Time // time per further token, of each sequence with two tokens or more
	refused int
	// While requests still came in:
	begun int // sequences that made their first token
	rows  int // computed
}

func (o *outcome) quantile(q float64) Time { return quantile(o.ttft, q) }

// quantile sorts times.
func quantile(times []Time, q float64) Time {
	slices.Sort(times)
	return times[int(q*float64(len(times)-1))]
}

// share simulates a server of a batch size. Its KV manager has room for all.
func share(tb testing.TB, d service, batch int, loads ...[]Sequence) map[string]*outcome {
	tb.Helper()
	s, err := New(Config{
		MaxBatchTokens: 512, ChunkTokens: d.chunk, MaxBatchSize: batch, MaxWaiting: 512,
		MaxSequenceTokens: 8192, KV: kvmgr.NewSpec(16, kvmgr.Full{}), LeaseAheadTokens: 32, WaitingServedRatio: d.ratio,
	})
	if err != nil {
		tb.Fatal(err)
	}
	all := slices.Concat(loads...)
	slices.SortFunc(all, func(a, b Sequence) int { return int(a.Arrival - b.Arrival) })
	out, live, begun := map[string]*outcome{}, map[ID]*Sequence{}, map[ID]Time{}
	for _, l := range loads {
		out[l[0].Tenant] = &outcome{}
	}
	var now Time
	var events []Event
	planned := func() *Plan {
		plan, err := s.Step(now, events)
		if err != nil {
			tb.Fatal(err)
		}
		events = events[:0]
		for _, e := range plan.Ended {
			o := out[live[e.ID].Tenant]
			if e.Reason == ReasonQueueFull {
				o.refused++
			}
			if e.Generated > 1 {
				o.tpot = append(o.tpot, (now-begun[e.ID])/Time(e.Generated-1))
			}
			delete(live, e.ID)
		}
		for _, r := range plan.Reserve {
			events = append(events, Granted(r.ID, r.Lease))
		}
		for _, l := range plan.Lease {
			events = append(events, Granted(l.ID, l.UpTo))
		}
		return plan
	}
	for next := 0; next < len(all) || !s.Idle(); {
		for ; next < len(all) && all[next].Arrival <= now; next++ {
			live[all[next].ID] = &all[next]
			events = append(events, Submit(&all[next]))
		}
		plan := planned()
		for plan.Hold {
			plan = planned()
		}
		if plan.Rows > 0 {
			now += d.takes(plan)
		} else if len(events) == 0 && next < len(all) {
			now = all[next].Arrival
		}
		for _, c := range plan.Chunks {
			q := live[c.ID]
			o, first := out[q.Tenant], c.Output && c.Start < q.PromptTokens
			if next < len(all) {
				o.rows += c.Rows
				if first {
					o.begun++
				}
			}
			if first {
				begun[c.ID] = now
				o.ttft = append(o.ttft, now-q.Arrival)
			}
			if !c.Output {
				continue
			}
			events = append(events, Sampled(c.ID))
		}
	}
	return out
}

// capacity is the requests that a server computes in a second at most.
func capacity(tb testing.TB, d service, batch int, until Time) float64 {
	tb.Helper()
	const flood = 100
	return float64(share(tb, d, batch, d.poisson("a", 1, flood, until, 1))["a"].begun) / until.Seconds()
}

// neighbor compares a tenant's time to the first token beside a neighbor with
// 1 and with 10 times its load; c is the capacity.
func neighbor(tb testing.TB, d service, batch int, c, load float64, until Time) (quiet, loud *outcome) {
	tb.Helper()
	mine := d.poisson("b", 1, load*c, until, 2)
	quiet = share(tb, d, batch, d.poisson("a", 1, d.neighbor*c, until, 1), mine)["b"]
	loud = share(tb, d, batch, d.poisson("a", 1, 10*d.neighbor*c, until, 1), mine)["b"]
	return quiet, loud
}

func TestALoudNeighborDoesNotMoveTheFirstToken(t *testing.T) {
	for _, c := range []struct {
		name  string
		d     service
		loads []float64
	}{{"bandwidth", bandwidth, []float64{0.05, 0.2, 0.4}}, {"small model", smallModel, []float64{0.2}}} {
		most := capacity(t, c.d, 64, 2*time.Minute)
		for _, load := range c.loads {
			quiet, loud := neighbor(t, c.d, 64, most, load, 10*time.Minute)
			before, after := quiet.quantile(0.99), loud.quantile(0.99)
			t.Logf("%s, load %.2f of the capacity: p99 %v beside 1x, %v beside 10x", c.name, load, before, after)
			if after > before*5/4 {
				t.Errorf("%s, load %.2f of the capacity: p99 of the time to the first token is %v, expected at most 1.25 x %v",
					c.name, load, after, before)
			}
			if loud.refused > 0 {
				t.Errorf("%s, load %.2f of the capacity: %d requests refused for another's load", c.name, load, loud.refused)
			}
		}
	}
}

func TestTenantsThatAlwaysHaveWorkShareByWeight(t *testing.T) {
	const until = 2 * time.Minute
	got := share(t, bandwidth, 64, bandwidth.poisson("a", 1, 100, until, 1), bandwidth.poisson("b", 3, 100, until, 2))
	ratio := float64(got["b"].rows) / float64(got["a"].rows)
	if ratio < 2.9 || ratio > 3.1 {
		t.Errorf("weights 1 and 3 got %d and %d rows, a ratio of %.3f", got["a"].rows, got["b"].rows, ratio)
	}
}

// BenchmarkNeighbor prints the ratio of the p99s of the time to the first token,
// exact and repeatable; the time per operation is that of the simulation.
func BenchmarkNeighbor(b *testing.B) {
	for _, c := range []struct {
		name  string
		d     service
		batch int
		load  float64
	}{
		{"batch=64/load=0.05", bandwidth, 64, 0.05}, {"batch=64/load=0.20", bandwidth, 64, 0.2},
		{"batch=64/load=0.40", bandwidth, 64, 0.4}, {"batch=64/load=0.45", bandwidth, 64, 0.45},
		{"batch=16/load=0.05", bandwidth, 16, 0.05}, {"batch=16/load=0.20", bandwidth, 16, 0.2}, {"batch=16/load=0.40", bandwidth, 16, 0.4},
		{"small-model/batch=64/load=0.05", smallModel, 64, 0.05}, {"small-model/batch=64/load=0.20", smallModel, 64, 0.2},
		{"small-model/batch=64/load=0.40", smallModel, 64, 0.4},
	} {
		b.Run(c.name, func(b *testing.B) {
			var quiet, loud *outcome
			for b.Loop() {
				quiet, loud = neighbor(b, c.d, c.batch, capacity(b, c.d, c.batch, 4*time.Minute), c.load, 10*time.Minute)
			}
			b.ReportMetric(quiet.quantile(0.99).Seconds()*1e3, "p99-1x-ms")
			b.ReportMetric(loud.quantile(0.99).Seconds()*1e3, "p99-10x-ms")
			b.ReportMetric(float64(loud.quantile(0.99))/float64(quiet.quantile(0.99)), "ratio")
		})
	}
}
