package log

import (
	"slices"
	"sync"
	"time"
)

// endedLog is the log of a call that ended here. The last two fields belong to the goroutine that restores logs.
type endedLog struct {
	log      string   // name of the log
	quotaKey string   // of its reservation
	initial  State    // before any record: has the tenant and the id
	records  [][]byte // nil if they were dropped to save memory; recent changes records and size
	size     int
	until    time.Time // the log is removed then
	last     uint64    // stream sequence of the newest record that we wrote
	whole    bool      // last is the end of the log
}

// recent has the logs of the calls that ended here within a window of time, with up to maxBytes of
// records. Above that, the tenant with the most bytes loses its oldest records.
type recent struct {
	window   time.Duration
	maxBytes int

	mu       sync.Mutex
	logs     []*endedLog // oldest first
	byLog    map[string]*endedLog
	byTenant map[string]int // bytes
	bytes    int
}

func newRecent(window time.Duration, most int) *recent {
	return &recent{window: window, maxBytes: most, byLog: map[string]*endedLog{}, byTenant: map[string]int{}}
}

func (r *recent) add(l *endedLog) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, record := range l.records {
		l.size += len(record)
	}
	l.until = time.Now().Add(r.window)
	r.logs = append(r.logs, l)
	r.byLog[l.log] = l
	r.byTenant[l.initial.Tenant] += l.size
	r.bytes += l.size
	for r.bytes > r.maxBytes {
		r.dropRecords(r.oldest(r.largest()))
	}
}

// largest returns the tenant with the most bytes.
func (r *recent) largest() (tenant string) {
	for t, n := range r.byTenant {
		if n > r.byTenant[tenant] {
			tenant = t
		}
	}
	return tenant
}

// oldest returns the oldest log of a tenant that has records.
func (r *recent) oldest(tenant string) *endedLog {
	return r.logs[slices.IndexFunc(r.logs, func(l *endedLog) bool { return l.size > 0 && l.initial.Tenant == tenant })]
}

// dropRecords drops the records of a log.
func (r *recent) dropRecords(l *endedLog) {
	r.bytes -= l.size
	if r.byTenant[l.initial.Tenant] -= l.size; r.byTenant[l.initial.Tenant] == 0 {
		delete(r.byTenant, l.initial.Tenant)
	}
	l.size, l.records = 0, nil
	if r.byLog[l.log] == l {
		delete(r.byLog, l.log)
	}
}

// expired removes and returns the logs whose time is over.
func (r *recent) expired(now time.Time) []*endedLog {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for ; n < len(r.logs) && now.After(r.logs[n].until); n++ {
		r.dropRecords(r.logs[n])
	}
	old := slices.Clone(r.logs[:n])
	r.logs = slices.Delete(r.logs, 0, n)
	return old
}

// records returns the records of a log, or nil if they were dropped.
func (r *recent) records(l *endedLog) [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return l.records
}

// get returns a log that has records, or nil.
func (r *recent) get(log string) *endedLog {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.byLog[log]; l != nil && l.size > 0 {
		return l
	}
	return nil
}

// all returns the logs that have records.
func (r *recent) all() []*endedLog {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.logs), func(l *endedLog) bool { return l.size == 0 })
}
