package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/wait"
)

// watch scrapes the metrics of every member, so that the counters of a killed process
// are known up to the last scrape.
type watch struct {
	cluster *cluster.Cluster

	mu   sync.Mutex
	last map[string]cluster.Metrics // by process and start
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

// look scrapes every member once. A process that does not answer keeps its last values.
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

// total returns the sum of a counter over all processes, ended ones too.
func (w *watch) total(name string) (sum float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, metrics := range w.last {
		sum += metrics[name]
	}
	return sum
}
