package gateway

import (
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/metrics"
)

// requests are those of a gateway, with the bound on them.
type requests struct {
	mu        sync.Mutex
	pids      map[string]*actor.PID // by api.Request.Key, as in admission
	admission admission
	closed    bool
}

func newRequests(e admission) *requests {
	return &requests{pids: make(map[string]*actor.PID), admission: e}
}

// begun says that a request's prompt is begun: it waits no more.
func (t *requests) begun(key string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.admission.begun(key, at)
}

// ended forgets a request.
func (t *requests) ended(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pids, key)
	t.admission.leave(key)
}

// tell sends a message to every request.
func (t *requests) tell(root *actor.RootContext, m any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, pid := range t.pids {
		root.Send(pid, m)
	}
}

func (t *requests) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pids)
}

// waiting counts the requests that are not begun.
func (t *requests) waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.admission.waits.Inside()
}

// close refuses requests from here on.
func (t *requests) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

func (t *requests) isClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

// ErrStopping is the error of a request that a stopping server refuses or ends.
func ErrStopping() error {
	return &api.Error{Code: api.CodeUnavailable, Reason: "stopping", RetryAfter: 5 * time.Second, Message: "the server is shutting down"}
}

// modelSeries are the metrics of requests by model.
type modelSeries struct {
	metrics *metrics.Metrics
	mu      sync.Mutex
	byModel map[string]*metrics.Model
}

func newModelSeries(m *metrics.Metrics, model string, series *metrics.Model) *modelSeries {
	return &modelSeries{metrics: m, byModel: map[string]*metrics.Model{model: series}}
}

func (s *modelSeries) of(model string) *metrics.Model {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byModel[model] == nil {
		s.byModel[model] = s.metrics.Model(model)
	}
	return s.byModel[model]
}
