package httpapi

import (
	"net/http"
	"strconv"

	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tracing"
)

// traced starts a span for each request. A traceparent header names its parent.
func (s *server) traced(path string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := s.opts.Tracer.Start(tracing.With(r.Context(), tracing.Extract(r.Header)), r.Method+" "+path,
			trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		next.ServeHTTP(w, r.WithContext(ctx))
		if w, ok := w.(*response); ok && span.IsRecording() {
			span.SetAttributes(semconv.HTTPRequestMethodKey.String(r.Method), semconv.HTTPRoute(path), semconv.URLPath(api.Cut(r.URL.Path)),
				semconv.HTTPResponseStatusCode(w.status))
			if w.status >= http.StatusInternalServerError || w.status == http.StatusOK { // other errors are the client's
				tracing.Fail(span, strconv.Itoa(w.status), w.err)
			}
		}
	})
}
