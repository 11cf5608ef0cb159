package natsapi_test

import (
	"context"
	"regexp"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/deploy"
	"github.com/millrace/millrace/e2e/natstest"
)

// BenchmarkStreams is the rate of messages of many streams, over a gateway's one connection in the account
// of its clients, and over its second one with the shipped accounts and permissions.
func BenchmarkStreams(b *testing.B) {
	b.Run("one-account", func(b *testing.B) {
		streams(b, &server.Options{}, nil, nil)
	})
	b.Run("accounts", func(b *testing.B) {
		for _, m := range regexp.MustCompile(`user: (\w+), password: \$(\w+)`).FindAllStringSubmatch(deploy.NATS, -1) {
			b.Setenv(m[2], m[1])
		}
		o := &server.Options{}
		if err := o.ProcessConfigString(deploy.NATS); err != nil {
			b.Fatal(err)
		}
		streams(b, o, []nats.Option{nats.UserInfo("front", "front")},
			[]nats.Option{nats.UserInfo("client", "client"), nats.CustomInboxPrefix("_INBOX.client")})
	})
}

// streams reads the streams of 16 callers at a time, each of 1,000 events.
func streams(b *testing.B, o *server.Options, front, client []nats.Option) {
	const callers, events = 16, 1000
	e := apitest.New(func(_ *api.Request, s *apitest.Stream) {
		for range events {
			s.Send(api.Event{Text: " token", Tokens: []int32{1}})
		}
		s.Send(api.Event{Finish: api.FinishStop, Done: true, Usage: &api.Usage{}})
	})
	srv := natstest.Start(b, o)
	service, err := natsapi.Start(natstest.Connect(b, srv, append(front, nats.InProcessServer(srv))...), e, natsapi.Options{})
	if err != nil {
		b.Fatal(err)
	}
	nc := natstest.Connect(b, srv, client...)
	messages := 0
	for b.Loop() {
		var mu sync.Mutex
		var done sync.WaitGroup
		for range callers {
			done.Add(1)
			inbox, n := nc.NewRespInbox(), 0
			_, err := nc.Subscribe(inbox, func(m *nats.Msg) {
				n++
				if m.Header.Get(natsapi.HeaderEnd) != "" {
					mu.Lock()
					messages += n
					mu.Unlock()
					m.Sub.Unsubscribe() //nolint:errcheck // the connection ends, too
					done.Done()
				}
			})
			if err != nil {
				b.Fatal(err)
			}
			if err := nc.PublishRequest("millrace.v1.chat.completions", inbox, []byte(hello+`,"stream":true}`)); err != nil {
				b.Fatal(err)
			}
		}
		done.Wait()
	}
	b.ReportMetric(float64(messages)/b.Elapsed().Seconds(), "messages/s")
	if err := service.Stop(context.Background()); err != nil {
		b.Fatal(err)
	}
}
