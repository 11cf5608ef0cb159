package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/chaos/workload"
	"github.com/millrace/millrace/e2e/wait"
)

const (
	fullDisk = 2 << 20 // bytes of a file system that gets full
	// damagedBlock is the distance of two flipped bytes in a file. It makes some slabs bad and leaves others good.
	damagedBlock = 128 << 10
)

// disks runs two workers with disks of their own. The file system of the one is full after some slabs. The file of the
// other is damaged while it runs, and again while it is killed and restarted. The streams are the same in each phase, so their
// prompts are on the disks. What cannot be stored or read is computed: every stream is whole.
func disks(ctx context.Context, s *suite) (*report, error) {
	p := pool{name: "A for disks", kinds: []string{workload.KindLong, workload.KindUnseeded}}
	c := s.config("disks")
	dir := filepath.Join(c.Dir, "kv-disk")
	// The pool is small, so that prefixes leave the memory, and no process finds them in that of a dead one.
	args := []string{"--kv-memory=32MiB", "--kv-shm=off", "--kv-disk=" + dir, "--kv-disk-size=64MiB"}
	c.Members[cluster.RoleCompute] = 0
	c.Groups = []cluster.Group{
		{Role: cluster.RoleCompute, Name: "compute-damaged", Count: 1, Args: args},
		{Role: cluster.RoleCompute, Name: "compute-full", Count: 1, Args: args, Mount: cluster.Mount{Dir: dir, Size: fullDisk}},
	}
	for _, made := range []string{c.Dir, dir} {
		if err := os.MkdirAll(made, 0o700); err != nil {
			return nil, err
		}
	}
	return s.phases(ctx, "disks", c, []pool{p}, func(ctx context.Context, t *trial) (least, error) {
		workers := t.Members(cluster.RoleCompute)
		damaged, full := workers[0], workers[1]
		err := t.phase(ctx, "", func(context.Context) error { return nil })
		if err == nil {
			err = t.full(ctx, full)
		}
		if err == nil {
			err = t.damagedPhase(ctx, "while it runs", func(context.Context) error { return t.damage(damaged, dir) })
		}
		if err == nil {
			err = t.damagedPhase(ctx, "across a restart", func(ctx context.Context) error {
				t.struck("kill", damaged.Role, damaged.Name)
				if err := damaged.Kill(); err != nil {
					return err
				}
				if err := t.damage(damaged, dir); err != nil {
					return err
				}
				return t.restart(ctx, damaged.Process, 0)
			})
		}
		return t.expectation(), err
	})
}

// full is an error unless a worker found its disk full, once.
func (t *trial) full(ctx context.Context, m *cluster.Member) error {
	metrics, err := m.Metrics(ctx)
	if err != nil {
		return err
	}
	stored, said := metrics["millrace_kv_disk_written_bytes_total"], m.LogCount("no space left on device")
	if stored == 0 || stored > fullDisk || said != 1 {
		return fmt.Errorf("%s stored %g bytes on a disk of %d and logged %d times that it is full, expected some, and once", m.Name, stored,
			fullDisk, said)
	}
	return nil
}

// damagedPhase runs the streams while harm is done to a disk. It is an error if no prefix came from a disk afterward, or no damage
// was found.
func (t *trial) damagedPhase(ctx context.Context, when string, harm func(context.Context) error) error {
	const hits, misses, faults = "millrace_kv_disk_hits_total", "millrace_kv_disk_misses_total", "millrace_kv_disk_errors_total"
	before := map[string]float64{}
	for _, name := range []string{hits, misses, faults} {
		before[name] = t.watch.total(name)
	}
	err := t.phase(ctx, "", func(ctx context.Context) error {
		if err := t.run.WaitTokens(ctx, int64(t.streams)); err != nil {
			return err
		}
		if err := harm(ctx); err != nil {
			return err
		}
		return wait.For(ctx, betweenFaults)
	})
	since := func(name string) float64 { return t.watch.total(name) - before[name] }
	t.notes = append(t.notes, fmt.Sprintf("bytes flipped %s: %g slabs came from disks, %g were missing there, %g were damaged", when,
		since(hits), since(misses), since(faults)))
	if err == nil && min(since(hits), since(misses), since(faults)) == 0 {
		err = errors.New("the damage met nothing: " + t.notes[len(t.notes)-1])
	}
	return err
}

// damage flips bytes in the files of a worker's disk, whether it runs or not.
func (t *trial) damage(m *cluster.Member, dir string) error {
	t.struck("flipped bytes", m.Role, m.Name)
	names, err := filepath.Glob(filepath.Join(dir, "*.kv"))
	if err != nil {
		return err
	}
	flipped := 0
	for _, name := range names {
		n, err := flip(name, t.random)
		if err != nil {
			return err
		}
		flipped += n
	}
	if flipped == 0 {
		return fmt.Errorf("%s has stored nothing in %s (%s)", m.Name, dir, strings.Join(names, ", "))
	}
	return nil
}

// flip flips a bit of a byte in each block of a file after the first page, which says what the file is.
func flip(name string, random *rand.Rand) (flipped int, err error) {
	const page = 4096
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	for block := int64(page); block < info.Size(); block += damagedBlock {
		at, b := block+random.Int64N(min(damagedBlock, info.Size()-block)), make([]byte, 1)
		if _, err := f.ReadAt(b, at); err != nil {
			return flipped, err
		}
		b[0] ^= 1
		if _, err := f.WriteAt(b, at); err != nil {
			return flipped, err
		}
		flipped++
	}
	return flipped, nil
}
