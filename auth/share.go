package auth

import (
	"encoding/json"
	"fmt"
	"time"
)

// NewsEvery is the interval at which a gateway reports the usage of its keys to the others. Limits
// hold for all gateways together, except for requests accepted within one interval.
const NewsEvery = 250 * time.Millisecond

// newsLast is how long the running requests of a silent gateway count.
const newsLast = 12 * NewsEvery

// used is what a key has used at one gateway.
type used struct {
	Requests int `json:"requests,omitempty"` // since the last news
	Tokens   int `json:"tokens,omitempty"`   // since the last news; negative: more was given back
	Running  int `json:"running"`            // requests, now
}

type news struct {
	Gateway string          `json:"gateway"`
	Keys    map[string]used `json:"keys"` // by id
}

// News is what the keys of this gateway have used since the last call, for Hear of the
// others; nil: nothing.
func (r *Keyring) News(gateway string) []byte {
	n := news{gateway, map[string]used{}}
	r.mu.RLock()
	for id, k := range r.keys {
		if u, fresh := k.limiter.news(); fresh {
			n.Keys[id] = u
		}
	}
	r.mu.RUnlock()
	if len(n.Keys) == 0 {
		return nil
	}
	data, _ := json.Marshal(n) // plain values
	return data
}

// Hear takes the news of another gateway; a gateway's own change nothing.
func (r *Keyring) Hear(now time.Time, self string, data []byte) error {
	var n news
	if err := json.Unmarshal(data, &n); err != nil {
		return fmt.Errorf("auth: news of keys: %w", err)
	}
	if n.Gateway == self {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	for id, u := range n.Keys {
		if k := r.keys[id]; k != nil { // else it was read there only, so far
			k.limiter.hear(now, n.Gateway, u)
		}
	}
	return nil
}

// elsewhere is what another gateway said last.
type elsewhere struct {
	running int
	at      time.Time
}

// news says whether there is any: running requests are, at each call, and their end.
func (l *limiter) news() (u used, fresh bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u = l.since
	u.Running = l.running
	fresh = u != used{} || l.reported > 0
	l.since, l.reported = used{}, l.running
	return u, fresh
}

func (l *limiter) hear(now time.Time, gateway string, u used) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests.fill(now)
	l.tokens.fill(now)
	l.requests.level -= float64(u.Requests)
	l.tokens.level = min(l.tokens.perMinute, l.tokens.level-float64(u.Tokens))
	if l.others == nil {
		l.others = make(map[string]elsewhere)
	}
	l.others[gateway] = elsewhere{u.Running, now}
}

// everywhere counts the running requests of all gateways.
func (l *limiter) everywhere(now time.Time) int {
	n := l.running
	for gateway, e := range l.others {
		if now.Sub(e.at) > newsLast {
			delete(l.others, gateway)
			continue
		}
		n += e.running
	}
	return n
}
