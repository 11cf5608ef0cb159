package prefix

import "github.com/millrace/millrace/kvmgr"

// Source makes the events of a worker.
type Source struct {
	salt    Salt
	number  uint64 // of the last event
	blocks  map[ID]struct{}
	changed map[ID]struct{} // since the last event
}

// NewSource returns the source of an empty cache. The salt is a secret, new for each Source.
func NewSource(salt Salt) *Source {
	return &Source{salt: salt, blocks: make(map[ID]struct{}), changed: make(map[ID]struct{})}
}

// Apply takes changes of the cache.
func (s *Source) Apply(list []kvmgr.Change) {
	for _, c := range list {
		id := s.salt.ID(c.Hash)
		if _, has := s.blocks[id]; has == c.Stored {
			continue // two slabs with the same ID
		}
		if c.Stored {
			s.blocks[id] = struct{}{}
		} else {
			delete(s.blocks, id)
		}
		if _, twice := s.changed[id]; twice {
			delete(s.changed, id)
		} else {
			s.changed[id] = struct{}{}
		}
	}
}

// mostIDs bounds an event: 32 KiB.
const mostIDs = 4096

// Flush returns the events of what has changed since the last call.
func (s *Source) Flush() (list []Event) {
	var e Event
	for id := range s.changed {
		if _, has := s.blocks[id]; has {
			e.Stored = append(e.Stored, id)
		} else {
			e.Removed = append(e.Removed, id)
		}
		if len(e.Stored)+len(e.Removed) == mostIDs {
			list = append(list, s.next(e))
			e = Event{}
		}
	}
	if len(e.Stored)+len(e.Removed) > 0 {
		list = append(list, s.next(e))
	}
	clear(s.changed)
	return list
}

func (s *Source) next(e Event) Event {
	s.number++
	e.Number = s.number
	return e
}

// Snapshot returns what the cache had at the last event.
func (s *Source) Snapshot() Snapshot {
	snap := Snapshot{Number: s.number, Salt: s.salt, Blocks: make([]ID, 0, len(s.blocks)+len(s.changed))}
	for id := range s.blocks {
		if _, later := s.changed[id]; !later {
			snap.Blocks = append(snap.Blocks, id)
		}
	}
	for id := range s.changed {
		if _, has := s.blocks[id]; !has {
			snap.Blocks = append(snap.Blocks, id)
		}
	}
	return snap
}
