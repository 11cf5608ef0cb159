// Package tracingtest has a receiver of traces for tests. It must not know which spans there are.
package tracingtest

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// Span is one that came.
type Span struct {
	Trace, ID, Parent string // hexadecimal; Parent "": none
	Name              string
	Roles             string // of the process that made it
	Attributes        map[string]string
	Events            []string
	Failed            bool
}

// Receiver takes spans by OTLP over HTTP.
type Receiver struct {
	URL   string
	mu    sync.Mutex
	spans []Span
}

// NewReceiver starts one; it ends with the test.
func NewReceiver(t testing.TB) *Receiver {
	r := &Receiver{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		var m collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &m)
		}
		if err != nil || q.URL.Path != "/v1/traces" {
			http.Error(w, "not an OTLP request", http.StatusBadRequest)
			return
		}
		r.take(&m)
	}))
	t.Cleanup(s.Close)
	r.URL = s.URL
	return r
}

func (r *Receiver) take(m *collector.ExportTraceServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range m.GetResourceSpans() {
		roles := attributes(of.GetResource().GetAttributes())["millrace.roles"]
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				span := Span{
					Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()),
					Parent: hex.EncodeToString(s.GetParentSpanId()), Name: s.GetName(), Roles: roles,
					Attributes: attributes(s.GetAttributes()), Failed: s.GetStatus().GetCode() == 2,
				}
				for _, e := range s.GetEvents() {
					span.Events = append(span.Events, e.GetName())
				}
				r.spans = append(r.spans, span)
			}
		}
	}
}

func attributes(list []*common.KeyValue) map[string]string {
	m := make(map[string]string, len(list))
	for _, kv := range list {
		text := kv.GetValue().GetStringValue()
		if a := kv.GetValue().GetArrayValue(); a != nil {
			var parts []string
			for _, v := range a.GetValues() {
				parts = append(parts, v.GetStringValue())
			}
			text = strings.Join(parts, ",")
		} else if text == "" {
			text = kv.GetValue().String()
		}
		m[kv.GetKey()] = text
	}
	return m
}

// Spans are those that came so far.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Span(nil), r.spans...)
}

// Tree writes the spans of a trace, each as the names from the trace's outermost span
// to it. It fails the test where a span's parent did not come; outside is one that need not.
func (r *Receiver) Tree(t testing.TB, traceID, outside string) map[string][]Span {
	t.Helper()
	byID := map[string]Span{}
	for _, s := range r.Spans() {
		if s.Trace == traceID {
			byID[s.ID] = s
		}
	}
	tree := map[string][]Span{}
	for _, s := range byID {
		path := s.Name
		for at := s; at.Parent != outside; {
			up, ok := byID[at.Parent]
			require.True(t, ok, "span %q has a parent that did not come", at.Name)
			at, path = up, up.Name+" > "+path
		}
		tree[path] = append(tree[path], s)
	}
	return tree
}
