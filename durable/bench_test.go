package durable_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/durable"
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
			g := newGateway(b, natsServer(b).ClientURL(), e, durable.Options{})
			for b.Loop() {
				c := decode(b, e, text)
				if mode == "none" {
					out, err := direct.Continue(b.Context(), c, c.Progress(nil), 0)
					if err != nil {
						b.Fatal(err)
					}
					for range out { //nolint:revive // read to the end
					}
					continue
				}
				r, err := g.Run(b.Context(), c)
				if err != nil {
					b.Fatal(err)
				}
				for range r.Events(b.Context()) { //nolint:revive // read to the end
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
			g := newGateway(b, natsServer(b).ClientURL(), e, durable.Options{})
			var all []time.Duration
			for b.Loop() {
				waits := make(chan []time.Duration)
				calls := make([]*call.Call, streams)
				for i := range calls {
					calls[i] = decode(b, e, text)
				}
				for i := range calls {
					go func() {
						var waited []time.Duration
						defer func() { waits <- waited }()
						r, err := g.Run(b.Context(), calls[i])
						if err != nil {
							b.Error(err)
							return
						}
						defer r.Close()
						for ev := range r.Events(b.Context()) {
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
