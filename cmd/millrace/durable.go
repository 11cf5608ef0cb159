package main

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/durable/calls"
)

// openDurable returns the runner that keeps answers as --stream-resume says, nil if none is kept.
func openDurable(conn *nats.Conn, direct *call.Direct, keys *auth.Keyring, s *config.Serve, log zerolog.Logger) (*calls.Calls, error) {
	if s.StreamResume == "off" {
		return nil, nil
	}
	opts := calls.Options{Logger: log, Always: s.StreamResume == "on", Keep: s.StreamKeep}
	if keys != nil {
		opts.Keys = keys
	}
	kept, err := calls.New(conn, direct, opts)
	switch {
	case err == nil:
		return kept, nil
	case s.StreamResume == "on":
		return nil, fmt.Errorf("--stream-resume on: %w", err)
	}
	log.Warn().Err(err).Msg("streams cannot be resumed")
	return nil, nil
}

// handOver gives the running resumable calls to other gateways. Their log is lost
// with an embedded NATS server: there, they run to their end.
func handOver(ctx context.Context, kept *calls.Calls, s *config.Serve) {
	if kept != nil && s.NATS != "" {
		kept.Drain(ctx)
	}
}
