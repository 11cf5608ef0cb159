package batch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/durable"
)

// keeper leads one batch from its first state to its end. If its gateway dies, another one does so from the state in the record. All of its
// steps may be repeated.
type keeper struct {
	b *Batches
	r *Record // as last read or written
}

const retryPause = time.Second

// beatEvery is the time between two signs of life. A keeper without one for half of a lease is considered dead.
func (k *keeper) beatEvery() time.Duration { return k.b.opts.Lease / 10 }

// run keeps the batch until it has ended, another gateway keeps it, or ctx ends.
func (k *keeper) run(ctx context.Context) {
	for ctx.Err() == nil && !k.r.Status.Ended() {
		err := k.step(ctx)
		var refused *api.Error
		switch {
		case err == nil, ctx.Err() != nil:
		case errors.Is(err, errLost):
			return
		case errors.As(err, &refused) && refused.Reason == "batch_not_found":
			return
		default:
			k.b.opts.Logger.Warn().Err(err).Str("batch", k.r.ID).Str("status", string(k.r.Status)).Msg("batch: a step failed; trying again")
			durable.Pause(ctx, retryPause, nil)
			if k.beat(ctx) != nil { // the state may be another one
				durable.Pause(ctx, retryPause, nil)
			}
		}
	}
	if k.r.Status.Ended() {
		k.b.opts.Logger.Info().Str("batch", k.r.ID).Str("status", string(k.r.Status)).Int("completed", k.r.Counts.Completed).
			Int("failed", k.r.Counts.Failed).Msg("batch ended")
		if err := k.b.storage.forget(context.WithoutCancel(ctx), k.r); err != nil {
			k.b.opts.Logger.Debug().Err(err).Str("batch", k.r.ID).Msg("batch: could not remove the lines of an ended batch; they expire")
		}
	}
}

func (k *keeper) step(ctx context.Context) error {
	switch k.r.Status {
	case Validating:
		return k.validate(ctx)
	case InProgress:
		return k.progress(ctx)
	case Finalizing, Cancelling:
		return k.end(ctx)
	case Completed, Expired, Cancelled, Failed:
	}
	return nil
}

// change changes the record. The error is errLost if another gateway keeps the batch.
func (k *keeper) change(ctx context.Context, f func(*Record) error) error {
	r, err := k.b.storage.change(ctx, k.r.Tenant, k.r.ID, func(r *Record) error {
		if r.Owner != k.b.node {
			return errLost
		}
		return f(r)
	})
	if r != nil && !errors.Is(err, errLost) {
		k.r = r
		k.b.note(r)
	}
	return err
}

// beat gives a sign of life, and reads the state that clients may have changed.
func (k *keeper) beat(ctx context.Context) error {
	return k.change(ctx, func(r *Record) error {
		r.Beat++
		return nil
	})
}

// while runs f and gives signs of life until it returns. When the batch leaves its state, ctx ends for f, and while returns nil.
func (k *keeper) while(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	status, done := k.r.Status, make(chan error, 1)
	left := k.b.catalog.left(k.r.ID, status)
	go func() { done <- f(ctx) }()
	tick := time.NewTicker(k.beatEvery())
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-left:
			left = nil
		case <-tick.C:
		}
		err := k.beat(ctx)
		if errors.Is(err, errLost) || err == nil && k.r.Status != status {
			cancel()
			<-done //nolint:errcheck // f was stopped
			return err
		}
	}
}

// validate checks the file.
func (k *keeper) validate(ctx context.Context) error {
	var n int
	var faults []Fault
	tenant, input, endpoint := k.r.Tenant, k.r.Input, k.r.Endpoint
	err := k.while(ctx, func(ctx context.Context) error {
		leave, err := k.b.checks.enter(ctx, tenant)
		if err != nil {
			return err
		}
		defer leave()
		_, file, err := k.b.opts.Files.Get(ctx, tenant, input)
		if err != nil {
			return err
		}
		defer file.Close()
		n, faults, err = checkFile(&paced{ctx: ctx, r: file}, endpoint, k.b.maxLine)
		return err
	})
	var refused *api.Error
	if errors.As(err, &refused) && refused.Code == api.CodeNotFound {
		faults, err = []Fault{{Code: "file_not_found", Param: "input_file_id", Message: refused.Message}}, nil
	}
	if err != nil || k.r.Status != Validating {
		return err
	}
	return k.change(ctx, func(r *Record) error {
		switch {
		case r.Status != Validating: // cancelled meanwhile
			return nil
		case len(faults) > 0:
			return r.Fail(faults, time.Now())
		}
		return r.Begin(n, time.Now())
	})
}

// tally is which lines have a result.
type tally struct {
	done   []bool
	counts Counts
}

func newTally(total int) *tally {
	return &tally{done: make([]bool, total), counts: Counts{Total: total}}
}

func (t *tally) add(line int, ok bool) {
	if line < 0 || line >= len(t.done) || t.done[line] {
		return
	}
	t.done[line] = true
	if ok {
		t.counts.Completed++
	} else {
		t.counts.Failed++
	}
}

func (t *tally) whole() bool { return t.counts.Completed+t.counts.Failed == t.counts.Total }

// progress puts the lines into the queue and counts their results, until all are there or the batch leaves its state.
func (k *keeper) progress(ctx context.Context) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	record, t := k.r, newTally(k.r.Counts.Total)
	type result struct {
		line int
		ok   bool
	}
	results, ended := make(chan result), make(chan error, 1)
	tasks.Go(func() {
		ended <- k.b.storage.follow(ctx, record, func(line int, ok bool) bool {
			select {
			case results <- result{line, ok}:
				return true
			case <-ctx.Done():
				return false
			}
		})
	})
	type filling struct {
		next int
		err  error
	}
	w, filled, stalled := newWindow(record.Counts.Total), make(chan filling, 1), time.Now()
	next, fills := 0, false
	fill := func() {
		limit := k.b.limit(record)
		if fills || next == record.Counts.Total || limit == 0 || !w.low(limit) {
			return
		}
		fills = true
		from := next
		tasks.Go(func() {
			n, err := k.fill(ctx, record, w, from, limit)
			filled <- filling{n, err}
		})
	}
	fill()
	left := k.b.catalog.left(record.ID, InProgress)
	tick := time.NewTicker(k.beatEvery())
	defer tick.Stop()
	for !t.whole() {
		select {
		case one := <-results:
			t.add(one.line, one.ok)
			w.finish(one.line)
			stalled = time.Now()
			fill()
			continue
		case err := <-ended:
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("results: %w", err)
		case f := <-filled:
			if fills, next = false, f.next; f.err != nil {
				return fmt.Errorf("queue: %w", f.err)
			}
			stalled = time.Now()
			fill()
			continue
		case <-ctx.Done():
			return ctx.Err()
		case <-left:
			left = nil
		case <-tick.C:
		}
		now := time.Now()
		if err := k.change(ctx, func(r *Record) error {
			r.Beat++
			r.Count(t.counts.Completed, t.counts.Failed)
			if r.Status == InProgress && now.Unix() >= r.Deadline && !t.whole() {
				return r.Expire(now)
			}
			return nil
		}); err != nil || k.r.Status != InProgress {
			return err
		}
		if !fills && now.Sub(stalled) > k.b.opts.Lease { // a line may be lost, with the memory of a NATS server
			if n, err := k.b.storage.queued(ctx, record); err == nil && n == 0 {
				next = 0
				w.empty()
			}
			stalled = now
		}
		fill()
	}
	return k.change(ctx, func(r *Record) error {
		if r.Status != InProgress {
			return nil
		}
		r.Count(t.counts.Completed, t.counts.Failed)
		return r.Finalize(time.Now())
	})
}

// fill puts lines without a result into the queue, from a line on, up to the limit of the window. It returns the line after them.
func (k *keeper) fill(ctx context.Context, r *Record, w *window, from, limit int) (next int, err error) {
	leave, err := k.b.fills.enter(ctx, r.Tenant)
	if err != nil {
		return from, err
	}
	defer leave()
	_, file, err := k.b.opts.Files.Get(ctx, r.Tenant, r.Input)
	if err != nil {
		return from, err
	}
	defer file.Close()
	if err := k.b.storage.recorded(ctx, r, func(line int, _ bool) { w.finish(line) }); err != nil {
		return from, err
	}
	defer k.b.wake()
	in := newLines(file, k.b.maxLine)
	for n := range r.Counts.Total {
		text, err := in.next()
		if err != nil {
			return n, fmt.Errorf("line %d: %w", n+1, err)
		}
		if n < from {
			continue
		}
		run, fits := w.add(n, len(text), limit)
		if !fits {
			return n, nil
		}
		if !run {
			continue
		}
		if err := k.b.storage.enqueue(ctx, r, n, text); err != nil {
			return n, err
		}
	}
	return r.Counts.Total, nil
}

// end gives every line without a result the error of its batch's end, and writes the files.
func (k *keeper) end(ctx context.Context) error {
	r := k.r
	var counts Counts
	var out, failures *output
	err := k.while(ctx, func(ctx context.Context) error {
		leave, err := k.b.ends.enter(ctx, r.Tenant)
		if err != nil {
			return err
		}
		defer leave()
		if err := k.b.storage.empty(ctx, r); err != nil {
			return err
		}
		rest := &remaining{k: k, r: r}
		defer rest.close()
		out, failures = k.b.output(ctx, r, "output"), k.b.output(ctx, r, "errors")
		defer out.abort()
		defer failures.abort()
		for n := 0; !r.Begun || n < r.Counts.Total; n++ {
			body, ok, err := rest.result(ctx, n)
			if errors.Is(err, io.EOF) && !r.Begun {
				break
			}
			if err != nil {
				return err
			}
			counts.Total++
			to := failures
			if counts.Failed++; ok {
				to = out
				counts.Failed--
				counts.Completed++
			}
			if err := to.write(body); err != nil {
				return err
			}
		}
		return errors.Join(out.close(), failures.close())
	})
	if err != nil {
		return err
	}
	return k.change(ctx, func(r *Record) error { return r.End(counts, out.id(), failures.id(), time.Now()) })
}

// remaining reads the results of a batch in the order of its lines, and writes those that are missing.
type remaining struct {
	k    *keeper
	r    *Record
	file io.ReadCloser
	in   *lines
	at   int // lines of the file that were read
}

func (m *remaining) close() {
	if m.file != nil {
		m.file.Close()
	}
}

// result returns the result of a line. io.EOF means that the file has no such line; only a file that was not checked can lack one.
func (m *remaining) result(ctx context.Context, n int) (body []byte, ok bool, err error) {
	for {
		if body, ok, err = m.k.b.storage.result(ctx, m.r, n); err != nil || body != nil {
			return body, ok, err
		}
		id, err := m.customID(ctx, n)
		if err != nil {
			return nil, false, err
		}
		body, err := unanswered(key(m.r.ID, n), id, m.r.Unrun()).encode()
		if err != nil {
			return nil, false, err
		}
		stored, err := m.k.b.storage.put(ctx, m.r, n, false, body)
		if err != nil {
			return nil, false, err
		}
		if stored {
			return body, false, nil
		}
	}
}

// customID returns what the client calls a line. If the file is gone it is "".
func (m *remaining) customID(ctx context.Context, n int) (string, error) {
	if m.file == nil {
		_, file, err := m.k.b.opts.Files.Get(ctx, m.r.Tenant, m.r.Input)
		var gone *api.Error
		if errors.As(err, &gone) && gone.Code == api.CodeNotFound {
			if m.r.Begun {
				return "", nil
			}
			return "", io.EOF
		}
		if err != nil {
			return "", err
		}
		m.file, m.in = file, newLines(file, m.k.b.maxLine)
	}
	for {
		text, err := m.in.next()
		if err != nil && !errors.Is(err, errLong) {
			return "", err
		}
		if m.at++; m.at <= n {
			continue
		}
		if m.at > MaxLines {
			return "", io.EOF
		}
		var l struct {
			CustomID string `json:"custom_id"`
		}
		json.Unmarshal(text, &l) //nolint:errcheck // of a file that was not checked
		return l.CustomID[:min(len(l.CustomID), maxCustomID)], nil
	}
}

// output writes a file of results while they are read. Without a result there is no file.
type output struct {
	b    *Batches
	ctx  context.Context //nolint:containedctx // of one function
	r    *Record
	what string
	pipe *io.PipeWriter
	done chan error
}

func (b *Batches) output(ctx context.Context, r *Record, what string) *output {
	return &output{b: b, ctx: ctx, r: r, what: what}
}

func (o *output) id() string {
	if o.done == nil {
		return ""
	}
	return fileID(o.r.ID, o.what)
}

func (o *output) write(body []byte) error {
	if o.pipe == nil {
		var from *io.PipeReader
		from, o.pipe = io.Pipe()
		o.done = make(chan error, 1)
		go func() {
			_, err := o.b.opts.Files.PutFree(o.ctx, o.r.Tenant, fileID(o.r.ID, o.what),
				map[string]string{FieldName: o.r.ID + "_" + o.what + ".jsonl", FieldPurpose: "batch_output"}, time.Time{}, from)
			from.CloseWithError(errors.Join(err, io.ErrClosedPipe)) //nolint:errcheck // never fails
			o.done <- err
		}()
	}
	if !bytes.HasSuffix(body, []byte("\n")) {
		body = append(body, '\n')
	}
	_, err := o.pipe.Write(body)
	return err
}

// close ends the file and waits until it is durable.
func (o *output) close() error {
	if o.pipe == nil {
		return nil
	}
	o.pipe.Close()
	o.pipe = nil
	return <-o.done
}

// abort drops a file that is not closed.
func (o *output) abort() {
	if o.pipe != nil {
		o.pipe.CloseWithError(errAborted) //nolint:errcheck // never fails
		<-o.done                          //nolint:errcheck // it was stopped
	}
}

var errAborted = errors.New("batch: the file was not completed")
