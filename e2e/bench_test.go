package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/actors/node"
	"github.com/millrace/millrace/api"
	httpapi "github.com/millrace/millrace/api/http"
	"github.com/millrace/millrace/compute/computetest"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/tokenizer"
)

// nullServer serves a pipeline over a null device by HTTP.
func nullServer(b *testing.B, streams, tokens int) *httptest.Server {
	tok, err := tokenizer.Load(demoModel)
	if err != nil {
		b.Fatal(err)
	}
	d := computetest.NewNull(streams*(tokens/computetest.SlabTokens+4), tok.VocabSize(), 300)
	p, err := node.New(node.Config{
		ModelID: "m", Model: d, Tokenizer: tok, Facts: api.WeightFacts{ContextLength: 4096},
		Sched: sched.Config{
			MaxBatchTokens: max(streams, 512), MaxBatchSize: streams, MaxSequenceTokens: 4096,
			KV: kvmgr.NewSpec(computetest.SlabTokens, kvmgr.Full{}), LeaseAheadTokens: 2 * computetest.SlabTokens,
		},
		Metrics: metrics.New(metrics.Build{}), Log: zerolog.Nop(),
	})
	if err != nil {
		b.Fatal(err)
	}
	h, err := httpapi.New(p, httpapi.Options{Logger: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	s := httptest.NewServer(h)
	b.Cleanup(func() {
		s.Close()
		if err := p.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	return s
}

// post writes a request on a connection of its own.
func post(address, body string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body)
	return c, err
}

// drain reads a stream to its [DONE]. It returns the number of chunks and the
// time of the first one.
func drain(c net.Conn) (chunks int, first time.Time, err error) {
	defer c.Close() //nolint:errcheck // read only
	r := bufio.NewReaderSize(c, 16<<10)
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return chunks, first, err
		}
		if len(line) > 6 && string(line[:6]) == "data: " {
			if line[6] == '[' {
				return chunks, first, nil
			}
			if chunks == 0 {
				first = time.Now()
			}
			chunks++
		}
	}
}

// BenchmarkHTTPStreams measures the cost of a token with 1,000 concurrent HTTP streams,
// with their clients.
func BenchmarkHTTPStreams(b *testing.B) {
	const streams, tokens = 1000, 200
	s := nullServer(b, streams, tokens)
	address := strings.TrimPrefix(s.URL, "http://")
	body := fmt.Sprintf(`{"model":"m","prompt":[1,2,3],"max_tokens":%d,"ignore_eos":true,"temperature":0,"stream":true}`, tokens)
	b.ReportAllocs()
	for b.Loop() {
		var wg sync.WaitGroup
		for range streams {
			c, err := post(address, body)
			if err != nil {
				b.Fatal(err)
			}
			wg.Go(func() {
				if chunks, _, err := drain(c); err != nil || chunks < tokens {
					b.Errorf("%d chunks: %v", chunks, err)
				}
			})
		}
		wg.Wait()
	}
	b.ReportMetric(float64(b.N)*streams*tokens/b.Elapsed().Seconds(), "tokens/s")
}

// BenchmarkHTTPFirstToken measures the time to the first token that the pipeline and
// HTTP add, at 200 requests per second.
func BenchmarkHTTPFirstToken(b *testing.B) {
	const rate, tokens = 200, 8
	s := nullServer(b, 200, tokens)
	address := strings.TrimPrefix(s.URL, "http://")
	body := fmt.Sprintf(`{"model":"m","prompt":[1,2,3],"max_tokens":%d,"ignore_eos":true,"temperature":0,"stream":true}`, tokens)
	var mu sync.Mutex
	var ttft []time.Duration
	var wg sync.WaitGroup
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	for b.Loop() {
		<-tick.C
		wg.Go(func() {
			begin := time.Now()
			c, err := post(address, body)
			if err != nil {
				b.Error(err)
				return
			}
			_, first, err := drain(c)
			if err != nil {
				b.Error(err)
			}
			mu.Lock()
			ttft = append(ttft, first.Sub(begin))
			mu.Unlock()
		})
	}
	wg.Wait()
	slices.Sort(ttft)
	b.ReportMetric(float64(ttft[len(ttft)*99/100].Microseconds())/1e3, "p99-ms")
	b.ReportMetric(float64(ttft[len(ttft)/2].Microseconds())/1e3, "p50-ms")
}
