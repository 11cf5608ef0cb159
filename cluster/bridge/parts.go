package bridge

import (
	"errors"
	"fmt"
	"time"
)

// Bounds of what is being put together. A prompt of a million tokens takes some
// 3 MB.
const (
	mostBytes = 256 << 20
	mostParts = 1 << 16
	partsLive = 30 * time.Second // without a further part
)

var errParts = errors.New("bridge: bad part")

// assembly puts the parts of large frames together. The parts of one frame come in
// order, those of several frames mixed.
type assembly struct {
	frames map[frameID]*partial
	bytes  int
}

type frameID struct {
	from string
	id   uint64
}

type partial struct {
	data  []byte
	next  uint32
	count uint32
	last  time.Time
}

// add takes a part. With the last one it returns the frame, else nil. An error
// gives up its frame.
func (a *assembly) add(now time.Time, from string, p *part) ([]byte, error) {
	a.expire(now)
	id := frameID{from, p.id}
	f := a.frames[id]
	switch {
	case p.count == 0 || p.count > mostParts:
		return nil, fmt.Errorf("%w: one of %d, expected 1 to %d", errParts, p.count, mostParts)
	case f == nil && p.index != 0:
		return nil, fmt.Errorf("%w: part %d of %d without those before it", errParts, p.index, p.count)
	case f == nil:
		f = &partial{count: p.count}
		if a.frames == nil {
			a.frames = make(map[frameID]*partial)
		}
		a.frames[id] = f
	case p.index != f.next || p.count != f.count:
		a.forget(id)
		return nil, fmt.Errorf("%w: part %d of %d, expected %d of %d", errParts, p.index, p.count, f.next, f.count)
	}
	if a.bytes+len(p.data) > mostBytes {
		a.forget(id)
		return nil, fmt.Errorf("%w: %d bytes are waiting for their rest, no more fit", errParts, a.bytes)
	}
	f.data = append(f.data, p.data...)
	f.next++
	f.last = now
	a.bytes += len(p.data)
	if f.next < f.count {
		return nil, nil
	}
	a.forget(id)
	return f.data, nil
}

func (a *assembly) forget(id frameID) {
	a.bytes -= len(a.frames[id].data)
	delete(a.frames, id)
}

func (a *assembly) expire(now time.Time) {
	for id, f := range a.frames {
		if now.Sub(f.last) > partsLive && !f.last.IsZero() {
			a.forget(id)
		}
	}
}

// split cuts an encoded frame into parts of at most size bytes.
func split(id uint64, data []byte, size int) []*part {
	count := (len(data) + size - 1) / size
	list := make([]*part, count)
	for i := range list {
		end := min((i+1)*size, len(data))
		list[i] = &part{id: id, index: uint32(i), count: uint32(count), data: data[i*size : end]}
	}
	return list
}
