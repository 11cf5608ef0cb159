package node

import (
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"
)

// registryBuckets is how many maps the actor system keeps its processes in, each of 32
// shards. A shard is as large for ever as it once was, and requests, each with a name of its
// own, come to all of them: protoactor's 1,024 maps keep 6 MiB after 150,000 requests, and
// are no faster.
const registryBuckets = 16

// restartOnFailure supervises the actors of the stages.
var restartOnFailure = actor.WithGuardian(actor.NewOneForOneStrategy(1000, time.Minute, actor.DefaultDecider))

// endOnFailure supervises requests. It is one for all of them: the actor system keeps a
// process for every strategy that it was ever given.
var endOnFailure = actor.NewOneForOneStrategy(0, 0, func(any) actor.Directive { return actor.StopDirective })

func newSystem(log zerolog.Logger) *actor.ActorSystem {
	s := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		return slog.New(zerolog.NewSlogHandler(log.Level(zerolog.WarnLevel)))
	}))
	buckets := s.ProcessRegistry.LocalPIDs.LocalPIDs
	few := &actor.SliceMap{LocalPIDs: append(buckets[:0:0], buckets[:registryBuckets]...)}
	for _, bucket := range buckets { // the system's own processes
		if bucket.IsEmpty() { // Items starts 32 goroutines
			continue
		}
		for id, process := range bucket.Items() {
			bucket.Remove(id)
			few.GetBucket(id).Set(id, process)
		}
	}
	s.ProcessRegistry.LocalPIDs = few
	return s
}
