package client

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
)

// inject writes the span of ctx into the W3C headers of a request, so that the server's spans are its
// children. Without a span it writes nothing.
func inject(ctx context.Context, header map[string][]string) {
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(header))
}
