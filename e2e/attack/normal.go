package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"
)

// newClient returns a client for a target. It does not verify the certificate, since the suite made it.
func newClient(t *target) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: t.config.tls}, MaxIdleConnsPerHost: 16, ForceAttemptHTTP2: true,
	}}
}

// normalPatience is the longest time of a normal request during an attack.
const normalPatience = 20 * time.Second

// do sends a request with a key ("": none) and returns the answer's status and body.
func (t *target) do(ctx context.Context, method, key, path string, body []byte, header http.Header) (int, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, t.http+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	maps.Copy(r.Header, header)
	if host := header.Get("Host"); host != "" {
		r.Host = host
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	answer, err := t.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64<<20))
	return answer.StatusCode, text, err
}

func (t *target) get(ctx context.Context, key, path string) (int, []byte, error) {
	return t.do(ctx, http.MethodGet, key, path, nil, nil)
}

func (t *target) post(ctx context.Context, key, path string, body any) (int, []byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	return t.do(ctx, http.MethodPost, key, path, text, nil)
}

// fields is a JSON object.
type fields = map[string]any

// normalBody is the request that must succeed at any time.
var normalBody = fields{"model": "tiny-chat", "prompt": "What is the capital of the US?", "temperature": 0, "max_tokens": 16}

// ask sends the normal request and returns the text of its answer.
func (t *target) ask(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, normalPatience)
	defer cancel()
	status, body, err := t.post(ctx, t.keys[victim], "/v1/completions", normalBody)
	if err != nil {
		return "", err
	}
	var answer struct{ Choices []struct{ Text string } }
	if status != http.StatusOK || json.Unmarshal(body, &answer) != nil || len(answer.Choices) != 1 {
		return "", fmt.Errorf("found status %d: %.200s, expected an answer", status, body)
	}
	return answer.Choices[0].Text, nil
}

// learn keeps the text of the normal answer.
func (t *target) learn(ctx context.Context) (err error) {
	t.text, err = t.ask(ctx)
	return err
}

// normal is the count of normal requests during an attack.
type normal struct {
	Good    int     `json:"good"`
	Bad     int     `json:"bad"`
	Slowest float64 `json:"slowest_seconds"`
	Problem string  `json:"problem,omitempty"` // error of the first bad one

	stop func()
	done chan struct{}
}

// beside sends normal requests to a target, and the same to its control server, until end is called.
func beside(ctx context.Context, t, control *target) *normal {
	ctx, cancel := context.WithCancel(ctx)
	stop := make(chan struct{})
	n := &normal{stop: func() { close(stop) }, done: make(chan struct{})}
	go func() {
		defer close(n.done)
		defer cancel()
		for {
			n.one(ctx, t)
			if _, err := control.ask(ctx); err != nil {
				n.Bad, n.Problem = n.Bad+1, "the control server: "+err.Error()
			}
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return n
}

func (n *normal) one(ctx context.Context, t *target) {
	begin := time.Now()
	text, err := t.ask(ctx)
	n.Slowest = max(n.Slowest, time.Since(begin).Seconds())
	if err == nil && text != t.text {
		err = fmt.Errorf("found the answer %q, expected %q", text, t.text)
	}
	if err == nil {
		n.Good++
		return
	}
	n.Bad++
	n.Problem = cmp.Or(n.Problem, err.Error())
}

func (n *normal) end() *normal {
	n.stop()
	<-n.done
	return n
}

// verdict returns an error unless there were normal requests and all of them succeeded.
func (n *normal) verdict() error {
	switch {
	case n.Bad > 0:
		return fmt.Errorf("%d of %d normal requests failed, the first: %s", n.Bad, n.Bad+n.Good, n.Problem)
	case n.Good == 0:
		return errors.New("no normal request ended")
	}
	return nil
}

// comparison is a target beside its control server, after the attacks.
type comparison struct {
	Target   string  `json:"target"`
	P50      float64 `json:"p50_seconds"`
	Control  float64 `json:"control_p50_seconds"`
	Resident int64   `json:"resident_bytes"`
	Expected int64   `json:"control_resident_bytes"`
}

// Bounds of a comparison, as ratios to the control server.
const (
	slowdown = 1.2
	growth   = 1.1
)

func (c *comparison) good() bool {
	return c.P50 <= slowdown*c.Control && float64(c.Resident) <= growth*float64(c.Expected)
}

// compare sends requests to a target and its control server in turn.
func compare(ctx context.Context, name string, t, control *target) (*comparison, error) {
	const requests = 20
	times := map[*target][]float64{}
	for range requests {
		for _, x := range []*target{t, control} {
			begin := time.Now()
			text, err := x.ask(ctx)
			if err == nil && text != t.text {
				err = fmt.Errorf("found the answer %q, expected %q", text, t.text)
			}
			if err != nil {
				return nil, fmt.Errorf("%s after the attacks: %w", x.Name, err)
			}
			times[x] = append(times[x], time.Since(begin).Seconds())
		}
	}
	c := &comparison{Target: name, P50: median(times[t]), Control: median(times[control])}
	for x, to := range map[*target]*int64{t: &c.Resident, control: &c.Expected} {
		u, err := x.Usage()
		if err != nil {
			return nil, err
		}
		*to = u.Resident
	}
	return c, nil
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}
