package auth

import (
	"context"
	"time"

	"github.com/rs/zerolog"
)

// Reloader reads files again: Reload says whether they changed. With an error
// everything stays as it was.
type Reloader interface {
	Reload(now time.Time) (changed bool, err error)
}

// Watch reloads r at each tick until ctx ends, and logs the result. what
// names it: "API keys".
func Watch(ctx context.Context, ticks <-chan time.Time, r Reloader, what string, log zerolog.Logger) {
	last := "" // the error of the last tick
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticks:
			changed, err := r.Reload(now)
			switch {
			case changed:
				log.Info().Msg(what + " read again")
			case err != nil && err.Error() != last:
				log.Error().Err(err).Msg(what + " stay as they were")
			}
			if last = ""; err != nil {
				last = err.Error()
			}
		}
	}
}
