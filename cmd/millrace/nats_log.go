package main

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// natsLog writes the messages of the embedded server to the log, notices as debug messages. It
// samples errors, because a client can cause any number of them.
type natsLog struct {
	log, few zerolog.Logger
	begun    atomic.Bool  // JetStream has read its files
	rebuilt  atomic.Int32 // notes that it read old indexes
}

func newNATSLog(log zerolog.Logger) *natsLog {
	const burst = 10
	return &natsLog{log: log, few: log.Sample(&zerolog.BurstSampler{Burst: burst, Period: time.Second})}
}

// recovered ends the time in which JetStream reads its files.
func (l *natsLog) recovered() {
	l.begun.Store(true)
	if n := l.rebuilt.Load(); n > 0 {
		l.log.Info().Msg("the last process with this data folder did not stop cleanly: JetStream has rebuilt its indexes from its messages")
	}
}

// Warnf implements server.Logger. An index of JetStream is older than its messages after a kill, in each of its streams. That is expected.
func (l *natsLog) Warnf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	if !l.begun.Load() && strings.Contains(text, "Filestore [") && strings.Contains(strings.ToLower(text), "stream state") &&
		!strings.Contains(text, "corrupt") {
		l.rebuilt.Add(1)
		l.log.Debug().Msg("nats: " + text)
		return
	}
	l.few.Warn().Msg("nats: " + text)
}

func (l *natsLog) Noticef(format string, v ...any) { l.log.Debug().Msgf("nats: "+format, v...) }
func (l *natsLog) Fatalf(format string, v ...any)  { l.log.Error().Msgf("nats: "+format, v...) }
func (l *natsLog) Errorf(format string, v ...any)  { l.few.Error().Msgf("nats: "+format, v...) }
func (l *natsLog) Debugf(format string, v ...any)  { l.log.Debug().Msgf("nats: "+format, v...) }
func (l *natsLog) Tracef(format string, v ...any)  { l.log.Trace().Msgf("nats: "+format, v...) }
