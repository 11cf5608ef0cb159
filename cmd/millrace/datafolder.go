package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/cmd/millrace/datadir"
	"github.com/millrace/millrace/config"
)

// dataDirPatience is how long a server waits for a folder: a process that was killed keeps it until the system has freed its memory.
const dataDirPatience = 3 * time.Second

// openDataDir takes the folder of --data-dir for the embedded NATS server, and names in s the one that it got.
func openDataDir(ctx context.Context, s *config.Serve, log zerolog.Logger) (*datadir.Dir, error) {
	me := datadir.Holder{HTTP: s.Listen, NATS: s.NATSListen}
	d, err := lockDataDir(ctx, s, me)
	var held *datadir.HeldError
	switch {
	case errors.As(err, &held):
		return nil,
			fmt.Errorf("--data-dir: %w: expected a folder that no other server uses: stop that process, take another --data-dir, or join it with --nats nats://%s", err, held.Holder.NATS)
	case err != nil:
		return nil, fmt.Errorf("--data-dir: %w", err)
	case d.Loose:
		log.Warn().Str("data-dir", d.Path).Msg("the file system has no locks: a second server in this folder would destroy its data")
	case d.Path != s.DataDir:
		log.Warn().Str("data-dir", d.Path).Str("expected", s.DataDir).Stringer("holder", datadir.HolderOf(s.DataDir)).
			Msg("another server has the data folder: this one has a folder of its own")
	}
	s.DataDir = d.Path
	return d, nil
}

func lockDataDir(ctx context.Context, s *config.Serve, me datadir.Holder) (*datadir.Dir, error) {
	_, port, err := net.SplitHostPort(s.Listen)
	if s.DataDirNamed || err != nil {
		return datadir.Lock(ctx, s.DataDir, me, dataDirPatience)
	}
	return datadir.Own(ctx, s.DataDir, port, me, dataDirPatience)
}
