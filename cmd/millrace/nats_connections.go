package main

import (
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/places"
)

// connections are those of clients at the embedded server. Clients get three quarters of all, and the rest is for nodes. A quarter of the
// clients' is for those without a key, and tenants share the others. A client beyond its share is refused.
//
// The server does not say when a connection ends. So connections that have ended count until a share is used up: then the open ones are
// counted, in at most a tenth of the time.
type connections struct {
	open func() ([]uint64, error)

	mu        sync.Mutex
	keyed     *places.Places
	anonymous *places.Places
	entered   map[uint64]entrance
	next      time.Time // of the next count
}

// entrance is where a connection has its place.
type entrance struct {
	in     *places.Places
	tenant string
}

func newConnections(all int, tenants func() int, open func() ([]uint64, error)) *connections {
	clients := all * 3 / 4
	one := func() int { return 1 }
	return &connections{open: open, keyed: places.New(clients-clients/4, tenants), anonymous: places.New(clients/4, one),
		entered: map[uint64]entrance{}}
}

// openConnections returns the ids of the open connections of a server.
func openConnections(s *server.Server, most int) ([]uint64, error) {
	c, err := s.Connz(&server.ConnzOptions{Limit: most, State: server.ConnOpen})
	if err != nil {
		return nil, err
	}
	ids := make([]uint64, 0, len(c.Conns))
	for _, one := range c.Conns {
		ids = append(ids, one.Cid)
	}
	return ids, nil
}

// enter takes a place for a connection of a client with the key, nil without one. It returns false if its share is used up.
func (c *connections) enter(id uint64, key api.Caller) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := entrance{in: c.anonymous}
	if key != nil {
		e = entrance{c.keyed, key.TenantName()}
	}
	if !e.in.Enter(e.tenant) {
		c.removeEnded()
		if !e.in.Enter(e.tenant) {
			return false
		}
	}
	c.entered[id] = e
	return true
}

// removeEnded gives the places of ended connections back.
func (c *connections) removeEnded() {
	begin := time.Now()
	if begin.Before(c.next) {
		return
	}
	defer func() {
		const rest = 10
		c.next = time.Now().Add(rest * time.Since(begin))
	}()
	open, err := c.open()
	if err != nil {
		return // the server is stopping
	}
	slices.Sort(open)
	for id, e := range c.entered {
		if _, found := slices.BinarySearch(open, id); !found {
			e.in.Leave(e.tenant)
			delete(c.entered, id)
		}
	}
}
