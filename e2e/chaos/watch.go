package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/wait"
)

// watch scrapes every member's metrics, so that the counters of a process that
// is killed are known up to the last look.
type watch struct {
	cluster *cluster.Cluster

	mu   sync.Mutex
	last map[string]cluster.Metrics // by process, each start for itself
}

const watchEvery = 500 * time.Millisecond

func newWatch(cl *cluster.Cluster) *watch {
	return &watch{cluster: cl, last: map[string]cluster.Metrics{}}
}

func (w *watch) run(ctx context.Context) {
	for wait.For(ctx, watchEvery) == nil {
		w.look(ctx)
	}
}

// look scrapes once. A process that does not answer keeps its last values.
func (w *watch) look(ctx context.Context) {
	var all sync.WaitGroup
	for _, m := range w.cluster.Members("") {
		all.Go(func() {
			pid := m.PID()
			metrics, err := m.Metrics(ctx)
			if err != nil || pid == 0 {
				return
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.last[fmt.Sprintf("%s %d", m.Name, pid)] = metrics
		})
	}
	all.Wait()
}

// total is a counter's sum over all processes there were.
func (w *watch) total(name string) (sum float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, metrics := range w.last {
		sum += metrics[name]
	}
	return sum
}
