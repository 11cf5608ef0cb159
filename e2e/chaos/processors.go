package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/e2e/chaos/cluster"
)

// shares are seconds of processor time, in total and by part of the machine.
type shares struct{ took, server, load, others float64 }

// clock is the processor time used up to a moment.
type clock struct {
	at   time.Time
	by   map[string]time.Duration // by role; see processorTime
	busy time.Duration            // time of the whole machine
}

func (v *server) processors() (c clock, err error) {
	c.at = time.Now()
	if c.by, err = processorTime(v.Cluster); err != nil {
		return c, err
	}
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return c, err
	}
	c.busy, err = busyTime(string(text))
	return c, err
}

// during returns the use of the processors while a load was offered. The server is idle after it.
func (v *server) during(ctx context.Context, load func() error) (used shares, err error) {
	before, err := v.processors()
	if err != nil {
		return used, err
	}
	if err := load(); err != nil {
		return used, err
	}
	after, err := v.processors()
	if err != nil {
		return used, err
	}
	return after.less(before), v.idle(ctx)
}

// busyTime reads from /proc/stat the time in which the processors were neither idle nor
// used by the machine's host.
func busyTime(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat: found %q, expected cpu and its times", line)
	}
	var ticks int64
	for i, field := range fields[1:8] { // user, nice, system, idle, iowait, irq, softirq
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if i != 3 && i != 4 {
			ticks += n
		}
	}
	return time.Duration(ticks) * cluster.Tick, nil
}

// less returns the use since an earlier moment.
func (c clock) less(before clock) shares {
	s := shares{took: c.at.Sub(before.at).Seconds()}
	for role, spent := range c.by {
		if role == "load" {
			s.load += (spent - before.by[role]).Seconds()
		} else {
			s.server += (spent - before.by[role]).Seconds()
		}
	}
	s.others = max((c.busy-before.busy).Seconds()-s.server-s.load, 0)
	return s
}

func (s shares) add(o shares) shares {
	return shares{s.took + o.took, s.server + o.server, s.load + o.load, s.others + o.others}
}

// cores returns the available processor time.
func (s shares) cores() float64 { return s.took * float64(runtime.NumCPU()) }

func (s shares) String() string {
	return fmt.Sprintf("%.2f, %.2f, %.2f of %d", s.server/s.took, s.load/s.took, s.others/s.took, runtime.NumCPU())
}
