package main

import (
	"fmt"
	"os"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/kvmgr/kvfile"
)

// openPools opens the directory of --kv-shm; nil where there is none. A worker without it serves all the same.
func openPools(s *config.Serve, log zerolog.Logger) *kvfile.Dir {
	path := s.KVShm
	switch {
	case path == "" || path == "off" || path == "auto" && s.NATS == "":
		return nil // alone, nobody continues what this process had
	case path == "auto":
		path = fmt.Sprintf("/dev/shm/millrace-%d", os.Getuid())
	}
	pools, err := kvfile.Open(path, warnPool(log))
	if err != nil {
		warnPool(log)(err)
		return nil
	}
	return pools
}

func warnPool(log zerolog.Logger) func(error) {
	return func(err error) {
		log.Warn().Err(err).Msg("other workers cannot adopt the KV cache of this process")
	}
}
