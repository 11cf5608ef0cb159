package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/node"
	"github.com/millrace/millrace/api"
	httpapi "github.com/millrace/millrace/api/http"
	"github.com/millrace/millrace/api/http/httpserver"
	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/computetest"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/tokenizer"
)

// pacedDevice waits for the time of a step, and longer for each of its rows. The
// processor stays free for the server.
type pacedDevice struct {
	*computetest.Null
	step, row time.Duration
}

func (d *pacedDevice) Run(rows []compute.Rows) (compute.Logits, error) {
	n := 0
	for _, r := range rows {
		n += len(r.Tokens)
	}
	time.Sleep(d.step + time.Duration(n)*d.row) //nolint:forbidigo // the device's time, of benchmarks
	return d, nil
}

// boundedServer serves a pipeline with a bounded queue by HTTP. wrap, which may
// be nil, puts something between HTTP and the pipeline; listen may replace the listener.
func boundedServer(tb testing.TB, device compute.Runner, batch, waiting int, o httpapi.Options, limits httpserver.Limits,
	wrap func(api.Engine) api.Engine, listen func(net.Listener) net.Listener) (*node.Node, *httptest.Server) {
	tb.Helper()
	tok, err := tokenizer.Load(demoModel)
	require.NoError(tb, err)
	p, err := node.New(node.Config{
		ModelID: "m", Model: device, Tokenizer: tok, Facts: api.WeightFacts{ContextLength: 4096},
		Sched: sched.Config{
			MaxBatchTokens: 512, ChunkTokens: 128, MaxBatchSize: batch, MaxWaiting: waiting, MaxSequenceTokens: 4096,
			KV: kvmgr.NewSpec(computetest.SlabTokens, kvmgr.Full{}), LeaseAheadTokens: 2 * computetest.SlabTokens,
		},
		MaxRequests: batch + waiting, Metrics: metrics.New(metrics.Build{}), Log: zerolog.Nop(),
	})
	require.NoError(tb, err)
	var e api.Engine = p
	if wrap != nil {
		e = wrap(p)
	}
	h, err := httpapi.New(e, o)
	require.NoError(tb, err)
	s := httptest.NewUnstartedServer(h)
	if listen != nil {
		s.Listener = listen(s.Listener)
	}
	bounded := httpserver.New(h, limits, zerolog.Nop())
	s.Listener, s.Config = bounded.Listener(s.Listener), bounded.Server
	s.Start()
	tb.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(tb, p.Close(ctx))
	})
	return p, s
}

// tightListener gives its connections small send buffers, so that the server soon notices a
// reader that stops. It reports the connections that the server closes.
type tightListener struct {
	net.Listener
	closed chan<- net.Addr // addresses of the clients
}

func (l tightListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &tightConn{c, l.closed}, c.(*net.TCPConn).SetWriteBuffer(4 << 10)
}

type tightConn struct {
	net.Conn
	closed chan<- net.Addr
}

func (c *tightConn) Close() error {
	c.closed <- c.RemoteAddr()
	return c.Conn.Close()
}

func TestAReaderThatStopsHoldsUpItsOwnStreamOnly(t *testing.T) {
	d := computetest.NewNull(4096, 4096, 300)
	closed := make(chan net.Addr, 64)
	p, s := boundedServer(t, d, 16, 16, httpapi.Options{}, httpserver.Limits{Write: time.Second}, nil,
		func(l net.Listener) net.Listener { return tightListener{l, closed} })
	address := strings.TrimPrefix(s.URL, "http://")
	body := `{"model":"m","prompt":[1,2,3],"max_tokens":4000,"ignore_eos":true,"temperature":0,"stream":true}`
	stopped, err := post(address, body)
	require.NoError(t, err)
	defer stopped.Close() //nolint:errcheck // read only
	require.NoError(t, stopped.(*net.TCPConn).SetReadBuffer(4<<10))
	_, err = io.ReadFull(stopped, make([]byte, 200)) // the stream has begun
	require.NoError(t, err)

	var others sync.WaitGroup
	for range 8 {
		others.Go(func() {
			c, err := post(address, body)
			if err != nil {
				t.Error(err)
				return
			}
			if chunks, _, err := drain(c); err != nil || chunks < 4000 {
				t.Errorf("%d chunks: %v", chunks, err)
			}
		})
	}
	others.Wait()
	require.Eventually(t, func() bool { return p.Running() == 0 }, patience, time.Millisecond, "its request has ended too")
	for a := range closed { // reading before that would let it continue
		if a.String() == stopped.LocalAddr().String() {
			break
		}
	}
	rest, _ := io.ReadAll(stopped) // the error is a reset or an end
	require.NotContains(t, string(rest), "[DONE]", "what it did not take in time it does not get")
}

// answerOf is the end of a request of the load.
type answerOf struct {
	status     int
	first, all time.Duration
	retryAfter string
}

// load sends requests at random times (Poisson) for a while and returns the end of each.
func load(url, key, body string, rate float64, length time.Duration, seed uint64) []answerOf {
	rng := rand.New(rand.NewPCG(seed, 1))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var out []answerOf
	var wg sync.WaitGroup
	begin := time.Now()
	for at := time.Duration(0); at < length; at += time.Duration(rng.ExpFloat64() / rate * float64(time.Second)) {
		time.Sleep(time.Until(begin.Add(at))) //nolint:forbidigo // the moment of an arrival
		wg.Go(func() {
			a := once(client, url, key, body)
			mu.Lock()
			out = append(out, a)
			mu.Unlock()
		})
	}
	wg.Wait()
	return out
}

func once(client *http.Client, url, key, body string) (a answerOf) {
	begin := time.Now()
	defer func() { a.all = time.Since(begin) }()
	req, err := http.NewRequest("POST", url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return a
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := client.Do(req)
	if err != nil {
		return a
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	stream := bufio.NewReader(resp.Body)
	if _, err := stream.ReadByte(); err != nil {
		return a
	}
	a.first = time.Since(begin)
	rest, err := io.ReadAll(stream)
	if err != nil || resp.StatusCode == 200 && !bytes.Contains(rest, []byte("[DONE]")) {
		return a // status 0: the connection was closed
	}
	a.status, a.retryAfter = resp.StatusCode, resp.Header.Get("Retry-After")
	return a
}

func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[int(q*float64(len(d)-1))]
}

// overloadDevice serves 16 sequences of 24 tokens in about 24 x 13 ms: 50 requests/s.
func overloadDevice() *pacedDevice {
	return &pacedDevice{Null: computetest.NewNull(4096, 4096, 300), step: 12 * time.Millisecond, row: 50 * time.Microsecond}
}

const overloadCapacity = 50 // requests/s, of overloadDevice

const overloadBody = `{"model":"m","prompt":[1,2,3,4,5,6,7,8],"max_tokens":24,"ignore_eos":true,"temperature":0,"stream":true}`

// BenchmarkOverload prints the goodput (answers with the first token within two
// seconds) at 1, 2, 5 and 10 times the capacity, and the time of a refusal.
func BenchmarkOverload(b *testing.B) {
	const length, slo = 8 * time.Second, 2 * time.Second
	for _, times := range []float64{1, 2, 5, 10} {
		b.Run(fmt.Sprintf("%gx", times), func(b *testing.B) {
			for b.Loop() {
				_, s := boundedServer(b, overloadDevice(), 16, 48, httpapi.Options{}, httpserver.Limits{}, nil, nil)
				var good, lost, hints int
				var refusals []time.Duration
				for _, a := range load(s.URL, "", overloadBody, times*overloadCapacity, length, 1) {
					switch {
					case a.status == 200 && a.first <= slo:
						good++
					case a.status == 429 || a.status == 503:
						refusals = append(refusals, a.all)
						if a.retryAfter != "" {
							hints++
						}
					case a.status != 200:
						lost++
					}
				}
				if hints < len(refusals) || lost > 0 {
					b.Errorf("%d of %d refusals say when to come again; %d requests were lost", hints, len(refusals), lost)
				}
				b.ReportMetric(float64(good)/length.Seconds(), "good/s")
				b.ReportMetric(float64(len(refusals))/length.Seconds(), "refused/s")
				b.ReportMetric(float64(quantile(refusals, .5).Microseconds())/1e3, "refusal-p50-ms")
				b.ReportMetric(float64(quantile(refusals, .99).Microseconds())/1e3, "refusal-p99-ms")
			}
		})
	}
}

// BenchmarkNeighborHTTP prints the p99 of the time to the first token of a tenant
// with a fifth of the capacity, beside a neighbor with 0.45 and with 4.5 of it,
// through HTTP and API keys.
func BenchmarkNeighborHTTP(b *testing.B) {
	const length = 12 * time.Second
	mine, myEntry := auth.NewKey("b")
	loud, loudEntry := auth.NewKey("a")
	path := filepath.Join(b.TempDir(), "keys.yaml")
	var text string
	for _, e := range []*auth.Entry{&myEntry, &loudEntry} {
		line, err := e.Line()
		require.NoError(b, err)
		text += line
	}
	require.NoError(b, os.WriteFile(path, []byte(text), 0o600))
	keys, err := auth.Open(path)
	require.NoError(b, err)
	for b.Loop() {
		var p99 [2]time.Duration
		for i, neighbor := range []float64{0.45, 4.5} {
			_, s := boundedServer(b, overloadDevice(), 16, 48, httpapi.Options{Keys: keys}, httpserver.Limits{}, auth.Guard, nil)
			var wg sync.WaitGroup
			wg.Go(func() { load(s.URL, loud, overloadBody, neighbor*overloadCapacity, length, 1) })
			var ttft []time.Duration
			for _, a := range load(s.URL, mine, overloadBody, 0.2*overloadCapacity, length, 2) {
				if a.status != 200 {
					b.Errorf("status %d for another's load", a.status)
				}
				ttft = append(ttft, a.first)
			}
			wg.Wait()
			p99[i] = quantile(ttft, .99)
		}
		b.ReportMetric(p99[0].Seconds()*1e3, "p99-1x-ms")
		b.ReportMetric(p99[1].Seconds()*1e3, "p99-10x-ms")
		b.ReportMetric(float64(p99[1])/float64(p99[0]), "ratio")
	}
}
