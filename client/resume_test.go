package client_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/call"
	httpapi "github.com/millrace/millrace/api/http"
	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/durable/calls"
	"github.com/millrace/millrace/e2e/faultproxy"
	"github.com/millrace/millrace/e2e/natstest"
)

const tokens = 40 // length of every answer

// counting returns an engine that answers with the numbers from 0 to tokens-1, after those that a
// resumed request already has. At position at it waits until hold is closed.
func counting(at int, hold <-chan struct{}) *apitest.Engine {
	return apitest.New(func(r *api.Request, s *apitest.Stream) {
		first := 0
		if r.Takeover != nil {
			first = len(r.Takeover.Choices[0].Tokens)
		}
		for i := first; i < tokens; i++ {
			if i == at {
				select {
				case <-hold:
				case <-s.Closed():
					return
				}
			}
			ev := api.Event{Text: fmt.Sprintf("%d ", i), Tokens: []int32{int32(i)}}
			if r.TopLogprobs >= 0 {
				ev.Logprobs = []api.TokenLogprob{{Token: int32(i), Text: ev.Text, Logprob: -1}}
			}
			if !s.Send(ev) {
				return
			}
		}
		s.Send(api.Event{Finish: api.FinishStop, Done: true, Usage: &api.Usage{PromptTokens: 7, CompletionTokens: tokens}})
	})
}

func whole() string {
	var b strings.Builder
	for i := range tokens {
		fmt.Fprintf(&b, "%d ", i)
	}
	return b.String()
}

func jetStream(t *testing.T) *server.Server {
	t.Helper()
	return natstest.Start(t, &server.Options{JetStream: true})
}

// gateway stands for a gateway process: an HTTP server and a NATS service.
type gateway struct {
	kept  *calls.Calls
	nc    *nats.Conn
	http  *httptest.Server
	begun chan struct{} // closed when it has sent something to a client over HTTP
}

// noting closes a channel after the first bytes of an answer.
type noting struct {
	http.ResponseWriter
	once *sync.Once
	sent chan struct{}
}

func (w noting) FlushError() error {
	err := http.NewResponseController(w.ResponseWriter).Flush()
	w.once.Do(func() { close(w.sent) })
	return err
}

func (w noting) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func newGateway(t *testing.T, url string, e api.Engine, options ...nats.Option) gateway {
	t.Helper()
	nc, err := nats.Connect(url, options...)
	require.NoError(t, err)
	kept, err := calls.New(nc, call.NewDirect(e), calls.Options{Watch: 20 * time.Millisecond})
	require.NoError(t, err)
	h, err := httpapi.New(e, httpapi.Options{Calls: kept, PingAfter: 100 * time.Millisecond})
	require.NoError(t, err)
	s, err := natsapi.Start(nc, e, natsapi.Options{Calls: kept, PingAfter: time.Hour, MaxBody: 64 << 20})
	require.NoError(t, err)
	begun, once := make(chan struct{}), new(sync.Once)
	note := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(noting{w, once, begun}, r) })
	g := gateway{kept, nc, httptest.NewServer(note), begun}
	t.Cleanup(func() {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		g.http.CloseClientConnections()
		kept.Close()
		g.http.Close()
		s.Stop(over) //nolint:errcheck // a killed one has no connection
		nc.Close()
	})
	return g
}

// kill closes every connection of a gateway, as the end of its process does.
func (g gateway) kill() {
	g.nc.Close()
	g.http.Listener.Close()
	g.http.CloseClientConnections()
}

// TestAStreamOutlivesItsGateway kills the gateway that runs a call. The client's loop gets
// every chunk once.
func TestAStreamOutlivesItsGateway(t *testing.T) {
	t.Parallel() // it waits most of its time
	for _, at := range []int{0, 1, 20, tokens - 1} {
		for _, transport := range []string{"http", "nats"} {
			t.Run(fmt.Sprintf("%s at %d", transport, at), func(t *testing.T) {
				hold := make(chan struct{})
				e := counting(at, hold)
				srv := jetStream(t)
				url := srv.ClientURL()
				a := newGateway(t, url, e)
				begun := a.begun
				if transport == "nats" {
					begun = make(chan struct{})
					once := new(sync.Once)
					_, err := natstest.Connect(t, srv).Subscribe("_INBOX.>", func(m *nats.Msg) {
						if m.Header.Get(natsapi.HeaderCancel) != "" && len(m.Data) == 0 {
							once.Do(func() { close(begun) })
						}
					})
					require.NoError(t, err)
				}
				var c client.Client
				var err error
				var b gateway
				if transport == "http" {
					b = newGateway(t, url, e)
					c, err = client.NewHTTP(a.http.URL, client.WithServers(b.http.URL))
				} else {
					c, err = client.DialNATS(url)
				}
				require.NoError(t, err)
				defer c.Close()
				var text string
				chunks, killed := 0, false
				kill := func() {
					killed = true
					if transport == "nats" {
						b = newGateway(t, url, e)
					}
					a.kill()
					close(hold)
				}
				over := make(chan struct{})
				go func() {
					defer close(over)
					if at == 0 { // no chunk comes before the first token
						<-begun
						kill()
					}
				}()
				var usage *client.Usage
				for chunk, err := range c.ChatStream(t.Context(), hi) {
					require.NoError(t, err)
					chunks++
					usage = chunk.Usage
					for _, ch := range chunk.Choices {
						text += ch.Content()
					}
					if at > 0 && !killed && strings.Count(text, " ") == at {
						kill()
					}
				}
				<-over
				require.Equal(t, whole(), text)
				require.Equal(t, 1+tokens+2, chunks) // the role, the words, the finish and the usage
				require.Equal(t, 7+tokens, usage.TotalTokens)
				require.Len(t, e.Requests(), 2)
			})
		}
	}
}

// TestAWholeAnswerOutlivesItsGateway compares the answer with that of a server that lives.
func TestAWholeAnswerOutlivesItsGateway(t *testing.T) {
	three := 3
	ask := client.CompletionRequest{Prompts: []string{"a", "b"}, Logprobs: &three, Sampling: client.Sampling{TokenIDs: true}}
	for _, transport := range []string{"http", "nats"} {
		hold := make(chan struct{})
		e := counting(20, hold)
		url := jetStream(t).ClientURL()
		a := newGateway(t, url, e)
		var c, plain client.Client
		var err error
		if transport == "http" {
			b := newGateway(t, url, e)
			c, err = client.NewHTTP(a.http.URL, client.WithServers(b.http.URL))
			require.NoError(t, err)
			plain, err = client.NewHTTP(b.http.URL, client.WithHTTPResume(0))
		} else {
			c, err = client.DialNATS(url)
			require.NoError(t, err)
			plain, err = client.DialNATS(url, client.WithNATSResume(0))
		}
		require.NoError(t, err)
		type result struct {
			*client.Response
			error
		}
		answered := make(chan result)
		go func() {
			got, err := c.Complete(t.Context(), ask)
			answered <- result{got, err}
		}()
		require.Eventually(t, func() bool { return len(e.Requests()) == 2 }, 20*time.Second, time.Millisecond)
		if transport == "nats" { // a alone gets the request before this
			newGateway(t, url, e)
		}
		a.kill()
		close(hold)
		got := <-answered
		require.NoError(t, got.error, transport)
		want, err := plain.Complete(t.Context(), ask)
		require.NoError(t, err)
		got.ID, got.Created = want.ID, want.Created
		for i := range want.Choices {
			require.JSONEq(t, string(want.Choices[i].Logprobs), string(got.Choices[i].Logprobs))
			got.Choices[i].Logprobs = want.Choices[i].Logprobs
		}
		require.Equal(t, want, got.Response, transport)
		chat, err := c.Chat(t.Context(), hi)
		require.NoError(t, err)
		want, err = plain.Chat(t.Context(), hi)
		require.NoError(t, err)
		chat.ID, chat.Created = want.ID, want.Created
		require.Equal(t, want, chat, transport)
		c.Close()
		plain.Close()
	}
}

// TestAStreamLeavesAGatewayThatIsStopped drops all packets of a gateway and leaves its connections
// open. Only the missing pings show it.
func TestAStreamLeavesAGatewayThatIsStopped(t *testing.T) {
	t.Parallel() // it waits most of its time
	for _, transport := range []string{"http", "nats"} {
		hold := make(chan struct{})
		e := counting(20, hold)
		url := jetStream(t).ClientURL()
		proxy := func(to string) *faultproxy.Proxy {
			_, address, _ := strings.Cut(to, "://")
			p, err := faultproxy.NewProxy(t.Context(), address)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, p.Close()) })
			return p
		}
		inside := proxy(url)
		a := newGateway(t, "nats://"+inside.Addr(), e)
		outside := proxy(a.http.URL)
		var c client.Client
		var err error
		if transport == "http" {
			c, err = client.NewHTTP("http://"+outside.Addr(), client.WithServers(newGateway(t, url, e).http.URL))
		} else {
			c, err = client.DialNATS(url)
		}
		require.NoError(t, err)
		text := ""
		for chunk, err := range c.ChatStream(t.Context(), hi) {
			require.NoError(t, err, transport)
			for _, ch := range chunk.Choices {
				text += ch.Content()
			}
			if strings.HasSuffix(text, " 19 ") {
				if transport == "nats" { // a alone gets the request before this
					newGateway(t, url, e)
				}
				inside.Blackhole()
				outside.Blackhole()
				close(hold)
			}
		}
		require.Equal(t, whole(), text, transport)
		require.Len(t, e.Requests(), 2)
		c.Close()
		inside.Heal()
		outside.Heal()
	}
}

// TestAClientThatWasAwayGoesOn sends the server the notice that nobody listens, which NATS sends when
// the server reconnects before the client. The client gets an error and resumes.
func TestAClientThatWasAwayGoesOn(t *testing.T) {
	hold := make(chan struct{})
	e := counting(10, hold)
	url := jetStream(t).ClientURL()
	newGateway(t, url, e)
	nc, err := nats.Connect(url)
	require.NoError(t, err)
	defer nc.Close()
	noticed := false
	_, err = nc.Subscribe("_INBOX.>", func(m *nats.Msg) {
		if cancel := m.Header.Get(natsapi.HeaderCancel); cancel != "" && !noticed {
			noticed = true
			notice := nats.NewMsg(cancel)
			notice.Header.Set("Status", "503")
			nc.PublishMsg(notice)
		}
		if m.Header.Get(natsapi.HeaderEnd) != "" && noticed {
			close(hold)
			noticed = false
			m.Sub.Unsubscribe()
		}
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	c, err := client.DialNATS(url)
	require.NoError(t, err)
	defer c.Close()
	text, _, _ := gather(t, c.ChatStream(t.Context(), hi))
	require.Equal(t, whole(), text)
	require.Len(t, e.Requests(), 1, "it ran once")
}

func TestLeavingAResumableStreamCancelsIt(t *testing.T) {
	for _, transport := range []string{"http", "nats"} {
		e := counting(3, nil)
		url := jetStream(t).ClientURL()
		g := newGateway(t, url, e)
		c, err := client.NewHTTP(g.http.URL)
		if transport == "nats" {
			c, err = client.DialNATS(url)
		}
		require.NoError(t, err)
		for chunk, err := range c.ChatStream(t.Context(), hi) {
			require.NoError(t, err)
			if chunk.Choices[0].Content() == "1 " {
				break
			}
		}
		e.WaitIdle() // before the server cancels a stream without a reader
		c.Close()
	}
}

func TestAStoppingGatewaysStreamsMove(t *testing.T) {
	for _, transport := range []string{"http", "nats"} {
		hold := make(chan struct{})
		e := counting(20, hold)
		url := jetStream(t).ClientURL()
		a := newGateway(t, url, e)
		c, err := client.DialNATS(url)
		if transport == "http" {
			c, err = client.NewHTTP(a.http.URL, client.WithServers(newGateway(t, url, e).http.URL))
		}
		require.NoError(t, err)
		text := ""
		for chunk, err := range c.ChatStream(t.Context(), hi) {
			require.NoError(t, err, transport)
			for _, ch := range chunk.Choices {
				text += ch.Content()
			}
			if strings.HasSuffix(text, " 19 ") {
				if transport == "nats" { // a alone gets the request before this
					newGateway(t, url, e)
				}
				a.kept.Drain(t.Context())
				close(hold)
			}
		}
		require.Equal(t, whole(), text, transport)
		require.Len(t, e.Requests(), 2)
		c.Close()
	}
}

func TestWithoutALogAStreamThatIsLostIsAnError(t *testing.T) {
	hold := make(chan struct{})
	e := counting(5, hold)
	url := jetStream(t).ClientURL()
	a := newGateway(t, url, e)
	plain, err := httpapi.New(e, httpapi.Options{})
	require.NoError(t, err)
	other := httptest.NewServer(plain) // without a log
	defer other.Close()
	c, err := client.NewHTTP(a.http.URL, client.WithServers(other.URL))
	require.NoError(t, err)
	var last error
	n := 0
	for chunk, err := range c.ChatStream(t.Context(), hi) {
		last = err
		if n++; err == nil && len(chunk.Choices) > 0 && chunk.Choices[0].Content() == "4 " {
			a.kill()
		}
	}
	require.ErrorIs(t, last, client.ErrGap)
	require.ErrorContains(t, last, "cannot be resumed on this server")
	require.Equal(t, 1+5+1, n)
	close(hold)
}

// TestARefusalThatComesDuringAQuestionIsRead answers a probe with the end of the stream while the
// last message, of a call without a log, is not read yet.
func TestARefusalThatComesDuringAQuestionIsRead(t *testing.T) {
	url := jetStream(t).ClientURL()
	nc, err := nats.Connect(url)
	require.NoError(t, err)
	defer nc.Close()
	stream := func(seq string, headers ...string) *nats.Msg {
		m := nats.NewMsg("")
		m.Header.Set(natsapi.HeaderSeq, seq)
		for i := 0; i < len(headers); i += 2 {
			m.Header.Set(headers[i], headers[i+1])
		}
		return m
	}
	reply := make(chan string, 1)
	_, err = nc.Subscribe("test.cancel", func(m *nats.Msg) {
		if m.Reply == "" {
			return
		}
		last := stream("2", natsapi.HeaderEnd, "error", "Nats-Service-Error-Code", "429", "Nats-Service-Error", "the queue is full")
		last.Subject = <-reply
		ended := nats.NewMsg(m.Reply)
		ended.Header.Set(natsapi.HeaderEnd, "1")
		assert.NoError(t, nc.PublishMsg(last))
		assert.NoError(t, nc.PublishMsg(ended))
	})
	require.NoError(t, err)
	_, err = nc.Subscribe("millrace.v1.chat.completions", func(m *nats.Msg) {
		first := stream("1", natsapi.HeaderCancel, "test.cancel", natsapi.HeaderID, "x", natsapi.HeaderInterval, "60")
		first.Subject, first.Data = m.Reply, []byte(`{"choices":[]}`)
		reply <- m.Reply
		assert.NoError(t, nc.PublishMsg(first))
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	c, err := client.DialNATS(url)
	require.NoError(t, err)
	defer c.Close()
	for _, err = range c.ChatStream(t.Context(), client.ChatRequest{Messages: []client.Message{{Role: "user", Content: "x"}}}) {
	}
	var said *client.Error
	require.ErrorAs(t, err, &said)
	require.Equal(t, 429, said.Status)
}

// TestAServerThatDiesDuringAProbeIsNoticedSoon: NATS delivers a probe to it until it knows of its death.
func TestAServerThatDiesDuringAProbeIsNoticedSoon(t *testing.T) {
	url := jetStream(t).ClientURL()
	nc, err := nats.Connect(url)
	require.NoError(t, err)
	defer nc.Close()
	var dead *nats.Subscription
	died := make(chan time.Time, 1)
	dead, err = nc.Subscribe("test.cancel", func(m *nats.Msg) {
		if m.Reply != "" {
			died <- time.Now()
			if err := dead.Unsubscribe(); err != nil {
				t.Error(err)
			}
		}
	})
	require.NoError(t, err)
	_, err = nc.Subscribe("millrace.v1.chat.completions", func(m *nats.Msg) {
		first := nats.NewMsg(m.Reply)
		first.Header = nats.Header{natsapi.HeaderSeq: {"1"}, natsapi.HeaderCancel: {"test.cancel"}, natsapi.HeaderID: {"x"},
			natsapi.HeaderInterval: {"60"}}
		first.Data = []byte(`{"choices":[]}`)
		assert.NoError(t, nc.PublishMsg(first))
	})
	require.NoError(t, err)
	resumed := make(chan time.Time, 1)
	_, err = nc.Subscribe("millrace.v1.streams.resume", func(m *nats.Msg) {
		resumed <- time.Now()
		end := nats.NewMsg(m.Reply)
		end.Header = nats.Header{natsapi.HeaderSeq: {"2"}, natsapi.HeaderEnd: {"stop"}}
		assert.NoError(t, nc.PublishMsg(end))
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	c, err := client.DialNATS(url)
	require.NoError(t, err)
	defer c.Close()
	for _, err := range c.ChatStream(t.Context(), hi) {
		require.NoError(t, err)
	}
	require.Less(t, (<-resumed).Sub(<-died), 800*time.Millisecond, "before the first probe's patience is over")
}
