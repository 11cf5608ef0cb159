// Package trim returns memory to the system that a burst of requests left in a process. It must not know
// what used the memory.
package trim

/*
#include <malloc.h>

enum { kSeparate = 1 << 20, kKept = 128 << 10 };

static void bound_malloc(void) {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, kSeparate);
  mallopt(M_TRIM_THRESHOLD, kKept);
#endif
}

static void trim_malloc(void) {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}
*/
import "C"

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/rs/zerolog"
)

// memory is what decides whether to trim, in bytes.
type memory struct {
	resident  uint64 // of the process's own, without files and the KV pool
	allocated uint64 // by Go since the process started
}

// trimmer decides when to return memory. Go's collector runs when the heap has doubled, or every two minutes, and
// malloc keeps what C++ and Rust free inside its arenas: after a few large requests a quiet process would stay large.
type trimmer struct {
	last memory // allocated: at the last check; resident: the least since the start, see trimmed
	vain int    // trims since the process was busy that left more than that
	wait int    // checks without a trim until the next one
}

const (
	every = 10 * time.Second
	// growth is the memory beside the least that is not worth a collection.
	growth = 4 << 20
	// quiet is the most bytes that a quiet process allocates between two checks.
	quiet = 64 << 20
	// longest is the longest wait between two trims, in checks. A trim that frees nothing doubles it: each is two collections.
	longest = 31
	// patience is how many trims in a row may leave more memory than the least: a log is kept for 30 s after its end,
	// connections live for minutes. What is still there then is in use.
	patience = 7
)

// due says whether to trim now: the process is quiet and larger than it has been, and the last trim is not too recent.
func (t *trimmer) due(m memory) bool {
	isQuiet := m.allocated-t.last.allocated <= quiet
	t.last.allocated, t.last.resident = m.allocated, min(t.last.resident, m.resident)
	switch {
	case !isQuiet, m.resident <= t.last.resident+growth:
		t.vain, t.wait = 0, 0
		return false
	case t.wait > 0:
		t.wait--
		return false
	}
	return true
}

// trimmed notes what a trim left.
func (t *trimmer) trimmed(m memory) {
	t.last.allocated = m.allocated
	if m.resident <= t.last.resident+growth {
		return
	}
	t.vain++
	t.wait = min(1<<(t.vain-1)-1, longest)
	if t.vain == patience {
		t.last.resident, t.vain, t.wait = m.resident, 0, 0
	}
}

// read reads the process's memory.
func read() (memory, error) {
	const path = "/proc/self/statm"
	text, err := os.ReadFile(path)
	if err != nil {
		return memory{}, err
	}
	var size, resident, shared uint64 // pages, see proc(5)
	_, err = fmt.Sscan(string(text), &size, &resident, &shared)
	if err != nil {
		return memory{}, fmt.Errorf("%s: found %q, expected numbers: %w", path, text, err)
	}
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return memory{resident: (resident - min(resident, shared)) * uint64(os.Getpagesize()), allocated: s[0].Value.Uint64()}, nil
}

// Run returns unused memory to the system while the process is quiet, until ctx ends. Where the system does not tell
// how large the process is, it does nothing.
func Run(ctx context.Context, log zerolog.Logger) {
	m, err := read()
	if err != nil {
		log.Warn().Err(err).Msg("memory that bursts leave is kept")
		return
	}
	// Otherwise both bounds grow with the largest block that was freed, to 32 and 64 MiB. Each arena keeps up to the
	// second one at its end, where malloc_trim returns memory of the main arena only, and there may be eight arenas for
	// each core. 128 KiB is glibc's own first value.
	C.bound_malloc()
	t := trimmer{last: m}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		before, err := read()
		if err != nil || !t.due(before) {
			continue
		}
		runtime.GC() // and once more below: what has a finalizer, or lies in a sync.Pool, outlives one collection
		debug.FreeOSMemory()
		C.trim_malloc()
		after, err := read()
		if err != nil {
			continue
		}
		t.trimmed(after)
		log.Debug().Uint64("before", before.resident).Uint64("after", after.resident).Msg("unused memory was returned")
	}
}
