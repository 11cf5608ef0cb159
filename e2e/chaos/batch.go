package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/api/batches"
	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/chaos/workload"
	"github.com/millrace/millrace/e2e/wait"
)

const (
	lineTokens    = 16
	linesPerRound = 2500      // in each round of kills
	batchDisk     = 384 << 20 // bytes of the file system that JetStream stores on
	// batchPatience bounds the time without any progress of a batch. A gateway that died has its lines leased for 30 s.
	batchPatience = 2 * time.Minute
	// noRoom is what a NATS server logs when a write fails because its disk is full.
	noRoom = "no space left on device"
	// unrunCode is the error of a line that did not run because its batch was cancelled.
	unrunCode = "batch_cancelled"
)

// Statuses of a batch.
const (
	statusValidating = "validating"
	statusRunning    = "in_progress"
	statusCompleted  = "completed"
	statusCancelled  = "cancelled"
)

// batch runs the lines of one file as four batches. The first is undisturbed. During the second, processes of each role and the NATS server
// are killed and restarted in turn. During the third, JetStream's disk is full for a while. The fourth is cancelled midway, and a gateway
// is killed then. Each line must be in the files of its batch once, with the answer of the undisturbed run. Only in the cancelled batch may
// lines have no answer.
func batch(ctx context.Context, s *suite) (_ *report, err error) {
	begin := time.Now()
	b, stop, err := s.openBatch(ctx)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return nil, err
	}
	failed := b.phases(ctx)
	for _, f := range b.faults {
		b.r.Faults[f.kind]++
	}
	b.r.Seconds = time.Since(begin).Seconds()
	return b.r, errors.Join(failed, b.whole(ctx))
}

// batchTrial is the scenario batch while it runs.
type batchTrial struct {
	*trial

	r        *report
	disk     *cluster.Disk
	api      *batchClient
	file     []byte
	expected *workload.BatchResult // of the undisturbed run; nil before it
	took     time.Duration         // of its lines
}

// openBatch starts a cluster whose NATS server stores on a disk of its own. The caller calls close even after an error.
func (s *suite) openBatch(ctx context.Context) (_ *batchTrial, stop func() error, err error) {
	const name = "batch"
	c := s.config(name)
	stop = func() error { return nil }
	mountpoint := filepath.Join(c.Dir, "disk")
	if err := os.MkdirAll(mountpoint, 0o700); err != nil {
		return nil, stop, err
	}
	hits := len(s.victims) + 3 // NATS, the disk, and a gateway at the cancellation
	b := &batchTrial{
		trial: &trial{suite: s, random: rand.New(rand.NewPCG(s.seed, uint64(len(name))))},
		r:     &report{Scenario: name, Faults: map[string]int{}, Least: least{Streams: s.lines, Hits: hits}},
	}
	b.r.Table = []string{
		"| batch | lines | answers, digest | errors | cancelled | duplicated | missing | differing | faults while lines ran | seconds |",
		"|---|---|---|---|---|---|---|---|---|---|",
	}
	if b.file, err = workload.Lines(s.lines, lineTokens, s.seed, filepath.Base(s.model)); err != nil {
		return nil, stop, err
	}
	if b.disk, err = cluster.NewDisk(mountpoint, batchDisk); err != nil {
		return nil, stop, err
	}
	stop = func() error { return b.disk.Close() }
	keys, args, err := makeKeys(c.Dir, callers[:1])
	if err != nil {
		return nil, stop, err
	}
	c.Args = slices.Concat(args, c.Args, []string{"--batch-store=128MiB", "--response-store=0"})
	c.NATSData = b.disk.Dir
	started, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	b.Cluster, err = cluster.Start(started, c)
	stop = func() error { return errors.Join(b.Close(), b.disk.Close()) }
	b.api = &batchClient{gateways: b.Gateways, key: keys[callers[0]]}
	return b, stop, err
}

func (b *batchTrial) phases(ctx context.Context) error {
	if err := b.runBatch(ctx, "undisturbed", statusCompleted, "", b.measure); err != nil {
		return err
	}
	if err := b.runBatch(ctx, "each role and NATS killed", statusCompleted, "", b.killAll); err != nil {
		return err
	}
	if err := b.runBatch(ctx, "full disk", statusCompleted, "", b.fillDisk); err != nil {
		return err
	}
	return b.runBatch(ctx, "cancelled midway", statusCancelled, unrunCode, b.cancelMidway)
}

// runBatch runs a batch while harm is done, and judges its files. It must end with the given status. Lines with the error code unrun did
// not run; "": all lines must have an answer.
func (b *batchTrial) runBatch(ctx context.Context, name, status, unrun string,
	harm func(context.Context, string) (map[string]int, error)) error {
	begin := time.Now()
	fail := func(err error) error { return fmt.Errorf("batch %q: %w", name, err) }
	input, err := b.api.upload(ctx, b.file)
	if err != nil {
		return fail(err)
	}
	first, err := b.api.create(ctx, input, workload.BatchEndpoint)
	if err != nil {
		return fail(err)
	}
	hits, err := harm(ctx, first.ID)
	if err != nil {
		return fail(err)
	}
	last, err := b.await(ctx, first.ID, ended)
	if err != nil {
		return fail(err)
	}
	if last.Status != status {
		return fail(fmt.Errorf("found status %s, expected %s", last.Status, status))
	}
	answers, err := b.api.content(ctx, last.OutputFile)
	if err != nil {
		return fail(err)
	}
	failures, err := b.api.content(ctx, last.ErrorFile)
	if err != nil {
		return fail(err)
	}
	result, err := workload.ReadBatch(answers, failures)
	if err != nil {
		return fail(err)
	}
	if b.expected == nil {
		b.expected = result
	}
	o, cancelled := result.Judge(b.lines, b.expected, unrun)
	b.r.add(&report{Outcome: o, Hits: sum(hits)})
	digest := result.Digest()[:12]
	b.r.Table = append(b.r.Table, fmt.Sprintf("| %s | %d | %d, %s | %d | %d | %d | %d | %d | %s | %.0f |", name, b.lines,
		len(result.Answers), digest, len(result.Errors)-cancelled,
		cancelled, o.Duplicated, o.Missing, o.Differing, strings.Trim(fmt.Sprint(hits), "map[]"), time.Since(begin).Seconds()))
	fmt.Fprintf(b.out, "  %s\n", b.r.Table[len(b.r.Table)-1])
	return errors.Join(b.counted(name, last, result), b.api.remove(ctx, &input, last.OutputFile, last.ErrorFile))
}

// counted is an error unless a batch's record has the numbers of lines in its files, each answer has all its tokens, and a cancelled batch
// has lines with an answer and lines without.
func (b *batchTrial) counted(name string, last *batches.Batch, result *workload.BatchResult) error {
	expected := batches.BatchCounts{Total: b.lines, Completed: len(result.Answers), Failed: len(result.Errors)}
	if last.RequestCounts != expected {
		return fmt.Errorf("batch %q: found the counts %+v, expected %+v", name, last.RequestCounts, expected)
	}
	if tokens := lineTokens * len(result.Answers); result.Tokens != tokens {
		return fmt.Errorf("batch %q: found %d tokens, expected %d", name, result.Tokens, tokens)
	}
	if last.Status == statusCancelled && min(expected.Completed, expected.Failed) == 0 {
		return fmt.Errorf("batch %q: found %d answers and %d lines that did not run, expected some of each", name, expected.Completed,
			expected.Failed)
	}
	return nil
}

func sum(counts map[string]int) (n int) {
	for _, count := range counts {
		n += count
	}
	return n
}

// begun reports whether the lines of a batch run, or did.
func begun(one *batches.Batch) bool { return one.Status != statusValidating }

// ended reports whether a batch changes no more.
func ended(one *batches.Batch) bool {
	return slices.Contains([]string{statusCompleted, statusCancelled, "failed", "expired"}, one.Status)
}

// await polls a batch until it is in a state. It is an error if the batch makes no progress for batchPatience.
func (b *batchTrial) await(ctx context.Context, id string, until func(*batches.Batch) bool) (*batches.Batch, error) {
	var last batches.Batch
	since := time.Now()
	for {
		one, err := b.api.get(ctx, id)
		switch {
		case err != nil:
			return nil, err
		case until(one):
			return one, nil
		case one.Status != last.Status || one.RequestCounts != last.RequestCounts:
			last, since = *one, time.Now()
		case ended(one) || time.Since(since) > batchPatience:
			return nil, fmt.Errorf("found status %s and the counts %+v for %s", one.Status, one.RequestCounts,
				time.Since(since).Round(time.Second))
		}
		if err := wait.For(ctx, retryPause); err != nil {
			return nil, err
		}
	}
}

// running reports whether lines of a batch run, or wait to.
func (b *batchTrial) running(ctx context.Context, id string) (bool, error) {
	one, err := b.api.get(ctx, id)
	return err == nil && one.Status == statusRunning, err
}

// measure harms nothing. It measures how long the lines take.
func (b *batchTrial) measure(ctx context.Context, id string) (map[string]int, error) {
	if _, err := b.await(ctx, id, begun); err != nil {
		return nil, err
	}
	begin := time.Now()
	_, err := b.await(ctx, id, ended)
	b.took = time.Since(begin)
	return nil, err
}

// killAll kills a process of each role and the NATS server in turn while lines run, once for each linesPerRound lines. It returns how often
// each was restarted before the last line had ended.
func (b *batchTrial) killAll(ctx context.Context, id string) (map[string]int, error) {
	hits := map[string]int{}
	turns := append(slices.Clone(b.victims), cluster.RoleNATS)
	if _, err := b.await(ctx, id, begun); err != nil {
		return hits, err
	}
	for i := range len(turns) * max(1, b.lines/linesPerRound) {
		role := turns[i%len(turns)]
		if err := wait.For(ctx, b.between(500*time.Millisecond, 2*time.Second)); err != nil {
			return hits, err
		}
		if err := b.killOne(ctx, role); err != nil {
			return hits, err
		}
		runs, err := b.running(ctx, id)
		if err != nil {
			return hits, err
		}
		if !runs {
			break
		}
		hits[role]++
	}
	for _, role := range turns {
		if hits[role] == 0 {
			return hits, fmt.Errorf("the batch ended before its lines met a kill of %s: expected one, so it needs more lines (--lines)",
				role)
		}
	}
	return hits, nil
}

// killOne kills a process of a role and restarts it.
func (b *batchTrial) killOne(ctx context.Context, role string) error {
	if role != cluster.RoleNATS {
		return b.killAndRestart(ctx, b.one(role), b.between(0, time.Second))
	}
	server := b.NATS()[0]
	b.struck("kill", role, server.Name)
	if err := server.Kill(); err != nil {
		return err
	}
	return b.restart(ctx, server, time.Second)
}

// fillDisk fills JetStream's disk while lines run. Uploads are refused then. When there is room again the NATS server is restarted, as an
// operator does.
func (b *batchTrial) fillDisk(ctx context.Context, id string) (map[string]int, error) {
	if _, err := b.await(ctx, id, begun); err != nil {
		return nil, err
	}
	server := b.NATS()[0]
	before := server.LogCount(noRoom)
	b.struck("full disk of", cluster.RoleNATS, server.Name)
	if err := b.disk.Fill(); err != nil {
		return nil, err
	}
	for begin := time.Now(); server.LogCount(noRoom) == before; {
		if time.Since(begin) > batchPatience {
			return nil, fmt.Errorf("%s has not logged for %s that its disk is full; the end of its log:\n%s", server.Name, batchPatience,
				server.LogTail())
		}
		if err := wait.For(ctx, retryPause); err != nil {
			return nil, err
		}
	}
	if err := b.refusedUpload(ctx); err != nil {
		return nil, err
	}
	if err := wait.For(ctx, betweenFaults); err != nil {
		return nil, err
	}
	if err := errors.Join(server.Kill(), b.disk.Empty()); err != nil {
		return nil, err
	}
	if err := b.restart(ctx, server, 0); err != nil {
		return nil, err
	}
	runs, err := b.running(ctx, id)
	if err == nil && !runs {
		err = errors.New("the batch ended before the disk was full, so it needs more lines (--lines)")
	}
	return map[string]int{"full disk": 1}, err
}

// refusedUpload is an error unless an upload is refused because there is no room.
func (b *batchTrial) refusedUpload(ctx context.Context) error {
	body, kind := uploadForm(b.file)
	_, err := b.api.once(ctx, http.MethodPost, "/v1/files", kind, body)
	var r *refused
	if errors.As(err, &r) && (r.status == http.StatusTooManyRequests || r.status == http.StatusServiceUnavailable) &&
		bytes.Contains(r.body, []byte(`"code":"files_`)) {
		b.r.Notes = append(b.r.Notes, "an upload to the full disk: "+r.Error())
		return nil
	}
	return errors.Join(errors.New("an upload to a full disk was not refused: expected 429 files_full or 503 files_unavailable"), err)
}

// cancelMidway cancels a batch after a quarter of the time that its lines take, and kills a gateway: it may be the one that keeps the
// batch. A fast machine has all answers before the batch's counts say so for the first time.
func (b *batchTrial) cancelMidway(ctx context.Context, id string) (map[string]int, error) {
	if _, err := b.await(ctx, id, begun); err != nil {
		return nil, err
	}
	if err := wait.For(ctx, b.took/4); err != nil {
		return nil, err
	}
	one, err := b.api.cancel(ctx, id)
	if err != nil {
		return nil, err
	}
	if ended(one) {
		return nil, fmt.Errorf("found status %s when the batch was cancelled, expected lines that run", one.Status)
	}
	return map[string]int{cluster.RoleGateway: 1}, b.killOne(ctx, cluster.RoleGateway)
}
