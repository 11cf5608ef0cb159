package objects

// waiter is shared by all who wait for the next change of one object.
type waiter struct {
	changed chan struct{}
	n       int
}

// Changed returns a channel that is closed when an object is stored, replaced or deleted at any gateway. A change during a loss of NATS may
// be missed. The caller calls stop in any case.
func (s *Store) Changed(tenant, id string) (changed <-chan struct{}, stop func()) {
	of := name(tenant, id)
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiters[of]
	if w == nil {
		w = &waiter{changed: make(chan struct{})}
		s.waiters[of] = w
	}
	w.n++
	return w.changed, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if w.n--; w.n == 0 && s.waiters[of] == w {
			delete(s.waiters, of)
		}
	}
}
