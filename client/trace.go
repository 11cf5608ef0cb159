package client

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
)

// inject has the server's spans hang below the caller's: the span of ctx goes into the W3C
// headers of a request. Without one nothing does.
func inject(ctx context.Context, header map[string][]string) {
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(header))
}
