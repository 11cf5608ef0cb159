package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/grafana/sobek"
	"github.com/nats-io/nats.go"
	"go.k6.io/k6/js/common"
	"go.k6.io/k6/js/modules"
	"go.k6.io/k6/lib/types"
	"go.k6.io/k6/metrics"
)

// root is what all virtual users share: one NATS connection per URL, open
// until the process ends.
type root struct {
	mu    sync.Mutex
	conns map[string]*nats.Conn
}

// NewModuleInstance makes the module of one virtual user.
func (r *root) NewModuleInstance(vu modules.VU) modules.Instance {
	measures, err := register(vu.InitEnv().Registry)
	if err != nil {
		common.Throw(vu.Runtime(), err)
	}
	return &instance{root: r, vu: vu, measures: measures}
}

func (r *root) connect(url string) (*nats.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if nc := r.conns[url]; nc != nil && !nc.IsClosed() {
		return nc, nil
	}
	options := []nats.Option{nats.Name("k6")}
	if id := keyID(apiKey(url)); id != "" {
		options = append(options, nats.CustomInboxPrefix(keyInboxes+id))
	}
	nc, err := nats.Connect(url, options...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", withoutKey(url), err)
	}
	if r.conns == nil {
		r.conns = make(map[string]*nats.Conn)
	}
	r.conns[url] = nc
	return nc, nil
}

type instance struct {
	root     *root
	vu       modules.VU
	measures measures
}

// Exports lists what a script can import.
func (m *instance) Exports() modules.Exports {
	return modules.Exports{Named: map[string]any{
		"chatStream":  m.chatStream,
		"natsRequest": m.natsRequest,
		"natsStream":  m.natsStream,
	}}
}

// result is what every call returns. A call throws only for wrong arguments.
type result struct {
	Status    int     `js:"status"`       // HTTP status or the code of a NATS error reply; 200; 0: no answer
	Body      string  `js:"body"`         // of a natsRequest, and of a refusal
	Text      string  `js:"text"`         // the answer
	Tokens    int     `js:"tokens"`       // completion tokens
	Finish    string  `js:"finishReason"` // stop, length; "" if cancelled or broken
	TTFT      float64 `js:"ttft"`         // ms to the first text
	Duration  float64 `js:"duration"`     // ms
	Cancelled bool    `js:"cancelled"`    // by cancelAfter
	Error     string  `js:"error"`        // "" if all went well
}

// options are the last argument of each call.
type options struct {
	headers     map[string]string
	timeout     time.Duration
	cancelAfter int // pieces of text after which the stream is abandoned; 0: never
}

// options reads a script's object; keys beyond these and known are an error.
func (m *instance) options(value sobek.Value, known ...string) (options, error) {
	o := options{timeout: time.Minute}
	if value == nil || sobek.IsUndefined(value) || sobek.IsNull(value) {
		return o, nil
	}
	object := value.ToObject(m.vu.Runtime())
	for _, key := range object.Keys() {
		var err error
		switch field := object.Get(key); key {
		case "headers":
			err = m.vu.Runtime().ExportTo(field, &o.headers)
		case "timeout":
			o.timeout, err = types.GetDurationValue(field.Export())
		case "cancelAfter":
			o.cancelAfter = int(field.ToInteger())
		default:
			if !slices.Contains(known, key) {
				err = fmt.Errorf("unknown, expected headers, timeout, cancelAfter %q", known)
			}
		}
		if err != nil {
			return o, fmt.Errorf("option %s: %w", key, err)
		}
	}
	return o, nil
}

// body is a script's request: a string as it is, an object as JSON. For a
// stream the object is made to ask for one, with its usage at the end.
func body(value sobek.Value, stream bool) ([]byte, error) {
	if value == nil || sobek.IsUndefined(value) {
		return nil, nil
	}
	exported := value.Export()
	if text, ok := exported.(string); ok {
		return []byte(text), nil
	}
	if fields, ok := exported.(map[string]any); ok && stream {
		fields["stream"] = true
		fields["stream_options"] = map[string]any{"include_usage": true}
	}
	return json.Marshal(exported)
}

// measures are the extension's metrics.
type measures struct {
	ttft, itl, tokens, streamErrors, rejections, cancelled *metrics.Metric
}

func register(registry *metrics.Registry) (measures, error) {
	var m measures
	for _, d := range []struct {
		to    **metrics.Metric
		name  string
		kind  metrics.MetricType
		value metrics.ValueType
	}{
		{&m.ttft, "millrace_ttft", metrics.Trend, metrics.Time},
		{&m.itl, "millrace_itl", metrics.Trend, metrics.Time},
		{&m.tokens, "millrace_tokens", metrics.Counter, metrics.Default},
		{&m.streamErrors, "millrace_stream_errors", metrics.Counter, metrics.Default},
		{&m.rejections, "millrace_rejections", metrics.Counter, metrics.Default},
		{&m.cancelled, "millrace_cancelled", metrics.Counter, metrics.Default},
	} {
		var err error
		if *d.to, err = registry.NewMetric(d.name, d.kind, d.value); err != nil {
			return m, err
		}
	}
	return m, nil
}

// finish turns an answer into a result and reports its metrics.
func (m *instance) finish(ctx context.Context, transport string, a *answer, err error) *result {
	now := time.Now()
	r := &result{
		Status: a.status, Body: a.body, Text: a.text.String(), Tokens: a.tokens(), Finish: a.finish,
		Duration: metrics.D(now.Sub(a.started)), Cancelled: a.cancelled,
	}
	if !a.first.IsZero() {
		r.TTFT = metrics.D(a.first.Sub(a.started))
	}
	if err != nil {
		r.Error = err.Error()
	}
	state := m.vu.State()
	tags := state.Tags.GetCurrentValues().Tags.With("transport", transport)
	push := func(metric *metrics.Metric, value float64) {
		metrics.PushIfNotDone(ctx, state.Samples, metrics.Sample{
			TimeSeries: metrics.TimeSeries{Metric: metric, Tags: tags}, Time: now, Value: value,
		})
	}
	if !a.first.IsZero() {
		push(m.measures.ttft, r.TTFT)
	}
	for _, gap := range a.gaps {
		push(m.measures.itl, metrics.D(gap))
	}
	push(m.measures.tokens, float64(r.Tokens))
	if a.cancelled {
		push(m.measures.cancelled, 1)
	}
	switch {
	case a.refused():
		push(m.measures.rejections, 1)
	case err != nil:
		push(m.measures.streamErrors, 1)
	}
	return r
}
