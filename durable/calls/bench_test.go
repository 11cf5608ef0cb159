package calls_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/durable/calls"
)

// BenchmarkJournal measures events/s of a call of 1,000 tokens, with and without the log. The engine is
// never the bottleneck.
func BenchmarkJournal(b *testing.B) {
	const events = 1000
	text := `{"prompt":"one","max_tokens":1000,"stream":true,"stream_resume":true}`
	e := deterministic(newGate(1 << 30))
	direct := call.NewDirect(e)
	for _, mode := range []string{"none", "log"} {
		b.Run(mode, func(b *testing.B) {
			g := newGateway(b, natsServer(b).ClientURL(), e, calls.Options{})
			for b.Loop() {
				c := decode(b, e, text)
				if mode == "none" {
					out, err := direct.Continue(b.Context(), c, c.Progress(nil), 0)
					if err != nil {
						b.Fatal(err)
					}
					for range call.All(b.Context(), out) { //nolint:revive // read to the end
					}
					continue
				}
				r, err := g.Run(b.Context(), c)
				if err != nil {
					b.Fatal(err)
				}
				for range call.All(b.Context(), r.Events(b.Context())) { //nolint:revive // read to the end
				}
				r.Close()
			}
			b.ReportMetric(float64(b.N)*events/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkAddedLatency measures the time from the engine to the reader through the log, with 1, 16 or
// 64 streams of one token every 5 ms.
func BenchmarkAddedLatency(b *testing.B) {
	const tokens, every = 100, 5 * time.Millisecond
	const text = `{"prompt":"one","stream":true,"stream_resume":true}`
	for _, streams := range []int{1, 16, 64} {
		b.Run(strconv.Itoa(streams), func(b *testing.B) {
			e := apitest.New(func(_ *api.Request, s *apitest.Stream) {
				tick := time.NewTicker(every)
				defer tick.Stop()
				for i := range tokens {
					<-tick.C
					s.Send(api.Event{Text: strconv.FormatInt(time.Now().UnixNano(), 10), Tokens: []int32{int32(i)}})
				}
				s.Send(api.Event{Finish: api.FinishStop, Done: true, Usage: &api.Usage{}})
			})
			g := newGateway(b, natsServer(b).ClientURL(), e, calls.Options{})
			var all []time.Duration
			for b.Loop() {
				waits := make(chan []time.Duration)
				sent := make([]*call.Call, streams)
				for i := range sent {
					sent[i] = decode(b, e, text)
				}
				for i := range sent {
					go func() {
						var waited []time.Duration
						defer func() { waits <- waited }()
						r, err := g.Run(b.Context(), sent[i])
						if err != nil {
							b.Error(err)
							return
						}
						defer r.Close()
						for ev := range call.All(b.Context(), r.Events(b.Context())) {
							if sent, err := strconv.ParseInt(ev.Text, 10, 64); err == nil {
								waited = append(waited, time.Duration(time.Now().UnixNano()-sent))
							}
						}
					}()
				}
				for range streams {
					all = append(all, <-waits...)
				}
			}
			slices.Sort(all)
			if len(all) > 0 {
				b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-us")
				b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-us")
			}
		})
	}
}

// BenchmarkTakeOver measures how long the calls of a gateway that died have no events: 100 of 200 calls of
// 60 tokens, whose readers come to the other gateway at once.
func BenchmarkTakeOver(b *testing.B) {
	const streams, tokens = 200, 60
	const text = `{"prompt":"one","max_tokens":100,"stream":true,"stream_resume":true}`
	url := natsServer(b).ClientURL()
	var all []time.Duration
	for b.Loop() {
		g := newGate(1)
		e := deterministic(g)
		pair := []gateway{newGateway(b, url, e, calls.Options{}), newGateway(b, url, e, calls.Options{})}
		views := make([]*view, streams)
		for i := range views {
			views[i] = see(b, begin(b, pair[i%2], e, text))
		}
		for n := range tokens { // the records of the calls alternate
			g.open(n + 1)
			for _, v := range views {
				v.until(uint64(n + 1))
			}
		}
		died := time.Now()
		pair[0].kill()
		g.open(tokens + 1)
		gaps := make(chan time.Duration)
		for i := 0; i < streams; i += 2 {
			go func() {
				r, err := pair[1].Attach(b.Context(), views[i].call.ID)
				if err != nil {
					b.Error(err)
					gaps <- 0
					return
				}
				defer r.Close()
				for ev := range call.All(b.Context(), r.Events(b.Context())) {
					if ev.Seq > tokens {
						break
					}
				}
				gaps <- time.Since(died)
			}()
		}
		for range streams / 2 {
			all = append(all, <-gaps)
		}
		g.open(1 << 30)
		for i := 1; i < streams; i += 2 {
			views[i].until(0)
		}
		pair[1].Close()
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
}
