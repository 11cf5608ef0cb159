package sched

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Tenants that share a device, in virtual time: a step takes stepTime, and
// rowTime for each of its rows.
const (
	stepTime = 8 * time.Millisecond
	rowTime  = 30 * time.Microsecond
)

// poisson makes the requests of a tenant: random arrivals at a rate (1/s),
// log-normal lengths. They do not depend on other tenants.
func poisson(tenant string, weight int, rate float64, until Time, seed uint64) []Sequence {
	rng := rand.New(rand.NewPCG(seed, 7))
	length := func(median, sigma float64, most int) int {
		return min(max(int(median*math.Exp(sigma*rng.NormFloat64())), 1), most)
	}
	var out []Sequence
	for at := 0.0; ; {
		at += rng.ExpFloat64() / rate
		if at > until.Seconds() {
			return out
		}
		out = append(out, Sequence{
			ID: ID(uint64(len(out)+1)<<8 | seed), Tenant: tenant, Weight: weight, Arrival: Time(at * 1e9),
			PromptTokens: length(200, 0.8, 3000), MaxNewTokens: length(100, 0.7, 1000),
		})
	}
}

// outcome is what a tenant got.
type outcome struct {
	ttft    []Time
	refused int
	// While requests still came in:
	begun int // sequences that made their first token
	rows  int // computed
}

func (o *outcome) quantile(q float64) Time {
	slices.Sort(o.ttft)
	return o.ttft[int(q*float64(len(o.ttft)-1))]
}

// share simulates a server of a batch size. Its KV manager has room for all.
func share(tb testing.TB, batch int, loads ...[]Sequence) map[string]*outcome {
	tb.Helper()
	s, err := New(Config{
		MaxBatchTokens: 512, ChunkTokens: 128, MaxBatchSize: batch, MaxWaiting: 512,
		MaxSequenceTokens: 8192, SlabTokens: 16, LeaseAheadTokens: 32,
	})
	if err != nil {
		tb.Fatal(err)
	}
	all := slices.Concat(loads...)
	slices.SortFunc(all, func(a, b Sequence) int { return int(a.Arrival - b.Arrival) })
	out, live := map[string]*outcome{}, map[ID]*Sequence{}
	for _, l := range loads {
		out[l[0].Tenant] = &outcome{}
	}
	var now Time
	var events []Event
	for next := 0; next < len(all) || !s.Idle(); {
		for ; next < len(all) && all[next].Arrival <= now; next++ {
			live[all[next].ID] = &all[next]
			events = append(events, Submit(all[next]))
		}
		plan, err := s.Step(now, events)
		if err != nil {
			tb.Fatal(err)
		}
		events = events[:0]
		for _, e := range plan.Ended {
			if e.Reason == ReasonQueueFull {
				out[live[e.ID].Tenant].refused++
			}
			delete(live, e.ID)
		}
		for _, r := range plan.Reserve {
			events = append(events, Granted(r.ID, r.Lease))
		}
		for _, l := range plan.Lease {
			events = append(events, Granted(l.ID, l.UpTo))
		}
		if plan.Rows > 0 {
			now += stepTime + Time(plan.Rows)*rowTime
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
func capacity(tb testing.TB, batch int, until Time) float64 {
	tb.Helper()
	const flood = 100
	return float64(share(tb, batch, poisson("a", 1, flood, until, 1))["a"].begun) / until.Seconds()
}

// neighbour compares a tenant's time to the first token beside a neighbour with
// 1 and with 10 times the load of 0.45 of the capacity c.
func neighbour(tb testing.TB, batch int, c, load float64, until Time) (quiet, loud *outcome) {
	tb.Helper()
	mine := poisson("b", 1, load*c, until, 2)
	quiet = share(tb, batch, poisson("a", 1, 0.45*c, until, 1), mine)["b"]
	loud = share(tb, batch, poisson("a", 1, 4.5*c, until, 1), mine)["b"]
	return quiet, loud
}

func TestALoudNeighbourDoesNotMoveTheFirstToken(t *testing.T) {
	c := capacity(t, 64, 2*time.Minute)
	for _, load := range []float64{0.05, 0.2, 0.4} {
		quiet, loud := neighbour(t, 64, c, load, 10*time.Minute)
		before, after := quiet.quantile(0.99), loud.quantile(0.99)
		t.Logf("load %.2f of the capacity: p99 %v beside 1x, %v beside 10x", load, before, after)
		if after > before*5/4 {
			t.Errorf("load %.2f of the capacity: p99 of the time to the first token is %v, expected at most 1.25 x %v", load, after, before)
		}
		if loud.refused > 0 {
			t.Errorf("load %.2f of the capacity: %d requests refused for another's load", load, loud.refused)
		}
	}
}

func TestTenantsThatAlwaysHaveWorkShareByWeight(t *testing.T) {
	const until = 2 * time.Minute
	got := share(t, 64, poisson("a", 1, 100, until, 1), poisson("b", 3, 100, until, 2))
	ratio := float64(got["b"].rows) / float64(got["a"].rows)
	if ratio < 2.9 || ratio > 3.1 {
		t.Errorf("weights 1 and 3 got %d and %d rows, a ratio of %.3f", got["a"].rows, got["b"].rows, ratio)
	}
}

// BenchmarkNeighbour prints the ratio of the p99s of the time to the first token,
// exact and repeatable; the time per operation is that of the simulation.
func BenchmarkNeighbour(b *testing.B) {
	for _, c := range []struct {
		name  string
		batch int
		load  float64
	}{
		{"batch=64/load=0.05", 64, 0.05}, {"batch=64/load=0.20", 64, 0.2},
		{"batch=64/load=0.40", 64, 0.4}, {"batch=64/load=0.45", 64, 0.45},
		{"batch=16/load=0.05", 16, 0.05}, {"batch=16/load=0.20", 16, 0.2}, {"batch=16/load=0.40", 16, 0.4},
	} {
		b.Run(c.name, func(b *testing.B) {
			var quiet, loud *outcome
			for b.Loop() {
				quiet, loud = neighbour(b, c.batch, capacity(b, c.batch, 4*time.Minute), c.load, 10*time.Minute)
			}
			b.ReportMetric(quiet.quantile(0.99).Seconds()*1e3, "p99-1x-ms")
			b.ReportMetric(loud.quantile(0.99).Seconds()*1e3, "p99-10x-ms")
			b.ReportMetric(float64(loud.quantile(0.99))/float64(quiet.quantile(0.99)), "ratio")
		})
	}
}
