package main

import (
	"context"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/tracing"
)

// lastSpans is how long the receiver of traces may take at the end.
const lastSpans = 2 * time.Second

// openTracing opens what --otlp-endpoint, or OpenTelemetry's own environment, names.
// stop sends the last spans.
func openTracing(ctx context.Context, s *config.Serve, log zerolog.Logger) (_ trace.Tracer, stop func(), err error) {
	tracer, end, err := tracing.Open(ctx, tracing.Options{Endpoint: s.OTLPEndpoint, Ratio: s.TraceRatio, Version: version,
		Roles: s.Roles.Names})
	if err != nil {
		return nil, nil, err
	}
	few := log.Sample(&zerolog.BurstSampler{Burst: 1, Period: time.Minute})
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { few.Warn().Err(err).Msg("traces were not sent") }))
	return tracer, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSpans)
		defer cancel()
		if err := end(ctx); err != nil {
			log.Warn().Err(err).Msg("the last traces were not sent")
		}
	}, nil
}
