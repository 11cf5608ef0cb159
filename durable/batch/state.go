// Package batch runs the lines of files as calls, at the lowest priority: OpenAI's batches.
//
// A batch is a record in a key-value bucket, which this file changes: a state machine without clock or I/O. Its keeper, one gateway at a
// time, checks the file, puts each line into a work queue, counts the results and writes the files of results. The workers of all gateways
// take lines from the queue. A line may run more than once. Its result is written on the condition that there is none, so it is recorded
// once. See docs/decisions/batches.md. The package must not know how HTTP shows a batch.
package batch

import (
	"fmt"
	"net/http"
	"time"

	"github.com/millrace/millrace/api"
)

// Status is the state of a batch.
type Status string

// The states of a batch, with OpenAI's names.
//
//	validating -> in_progress -> finalizing -> completed, or expired if the time ended first
//	validating -> failed
//	validating, in_progress -> cancelling -> cancelled
const (
	Validating Status = "validating"
	InProgress Status = "in_progress"
	Finalizing Status = "finalizing"
	Completed  Status = "completed"
	Expired    Status = "expired"
	Cancelling Status = "cancelling"
	Cancelled  Status = "cancelled"
	Failed     Status = "failed"
)

// Ended reports whether nothing follows the state.
func (s Status) Ended() bool {
	switch s {
	case Completed, Expired, Cancelled, Failed:
		return true
	case Validating, InProgress, Finalizing, Cancelling:
	}
	return false
}

// Record is a batch. It is stored as JSON.
type Record struct {
	ID       string            `json:"id"`
	Tenant   string            `json:"tenant"`
	Key      string            `json:"key,omitempty"` // id of the API key that created it, and pays
	Endpoint string            `json:"endpoint"`
	Input    string            `json:"input"` // id of the file
	Window   string            `json:"window"`
	Metadata map[string]string `json:"metadata,omitempty"`

	Status   Status           `json:"status"`
	Times    map[Status]int64 `json:"times"`           // when it reached each state, Unix seconds
	Deadline int64            `json:"deadline"`        // Unix seconds; it expires then
	Late     bool             `json:"late,omitempty"`  // the deadline passed before the last result
	Begun    bool             `json:"begun,omitempty"` // the file has been checked, and Total is known
	Faults   []Fault          `json:"faults,omitempty"`
	Counts   Counts           `json:"counts"`
	Output   string           `json:"output,omitempty"` // id of the file of results; "": there is none
	Errors   string           `json:"errors,omitempty"` // id of the file of errors; "": there is none

	Owner string `json:"owner,omitempty"` // node of the keeper; "": none
	Beat  uint64 `json:"beat,omitempty"`  // counts signs of life of the keeper

	revision uint64 // of the bucket; higher is newer
}

// Counts are the numbers of lines.
type Counts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

// Fault is why a batch failed before its first line ran.
type Fault struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Param   string `json:"param,omitempty"`
	Line    int    `json:"line,omitempty"` // from 1; 0: the whole file
}

// New returns a batch in its first state.
func New(id, tenant, key, endpoint, input string, window time.Duration, metadata map[string]string, now time.Time) *Record {
	return &Record{ID: id, Tenant: tenant, Key: key, Endpoint: endpoint, Input: input, Window: windowName(window), Metadata: metadata,
		Status: Validating, Times: map[Status]int64{Validating: now.Unix()}, Deadline: now.Add(window).Unix()}
}

// windowName returns a duration of whole hours as clients write it: "24h".
func windowName(d time.Duration) string { return fmt.Sprintf("%dh", int(d.Hours())) }

// Created returns the time at which the batch was created. It is the clock of its lines, whenever they run.
func (r *Record) Created() time.Time { return time.Unix(r.Times[Validating], 0) }

func (r *Record) enter(s Status, now time.Time) {
	r.Status = s
	r.Times[s] = now.Unix()
}

// errState is the error of a step that the state does not allow.
func (r *Record) errState(step, expected string) error {
	return &api.Error{Code: http.StatusConflict, Reason: "batch_" + string(r.Status),
		Message: fmt.Sprintf("cannot %s batch %q: found status %s, expected %s", step, r.ID, r.Status, expected)}
}

// Begin notes that the file has the given number of lines, and that they may run.
func (r *Record) Begin(lines int, now time.Time) error {
	if r.Status != Validating {
		return r.errState("begin", "validating")
	}
	r.Begun, r.Counts.Total = true, lines
	r.enter(InProgress, now)
	return nil
}

// Fail ends the batch before its first line.
func (r *Record) Fail(faults []Fault, now time.Time) error {
	if r.Status != Validating {
		return r.errState("fail", "validating")
	}
	r.Faults = faults
	r.enter(Failed, now)
	return nil
}

// Count sets the numbers of lines with a result. Late counts change nothing.
func (r *Record) Count(completed, failed int) {
	if !r.Status.Ended() {
		r.Counts.Completed, r.Counts.Failed = completed, failed
	}
}

// Cancel stops the lines without a result. Cancelling a batch again changes nothing.
func (r *Record) Cancel(now time.Time) error {
	switch r.Status {
	case Validating, InProgress:
		r.enter(Cancelling, now)
	case Cancelling, Cancelled:
	case Finalizing, Completed, Expired, Failed:
		return r.errState("cancel", "validating or in_progress")
	}
	return nil
}

// Expire stops the lines without a result, because the deadline has passed.
func (r *Record) Expire(now time.Time) error {
	if r.Status != InProgress {
		return r.errState("expire", "in_progress")
	}
	r.Late = true
	r.enter(Finalizing, now)
	return nil
}

// Finalize notes that every line has a result.
func (r *Record) Finalize(now time.Time) error {
	if r.Status != InProgress {
		return r.errState("finalize", "in_progress")
	}
	if r.Counts.Completed+r.Counts.Failed != r.Counts.Total {
		return fmt.Errorf("batch: found %d results, expected %d", r.Counts.Completed+r.Counts.Failed, r.Counts.Total)
	}
	r.enter(Finalizing, now)
	return nil
}

// End notes that the files of results are written. Every line is in one of them, so the counts sum up to the total.
func (r *Record) End(c Counts, output, errorFile string, now time.Time) error {
	if c.Completed+c.Failed != c.Total || r.Begun && c.Total != r.Counts.Total {
		return fmt.Errorf("batch: found %d results and %d errors of %d lines, expected %d lines", c.Completed, c.Failed, c.Total,
			r.Counts.Total)
	}
	to := Completed
	switch {
	case r.Status == Cancelling:
		to = Cancelled
	case r.Status != Finalizing:
		return r.errState("end", "finalizing or cancelling")
	case r.Late:
		to = Expired
	}
	r.Counts, r.Output, r.Errors = c, output, errorFile
	r.enter(to, now)
	return nil
}

// Unrun returns the error that a line gets which has no result when the batch ends.
func (r *Record) Unrun() Fault {
	if r.Status == Cancelling {
		return Fault{Code: "batch_cancelled", Message: "This request was not run: the batch was cancelled."}
	}
	return Fault{Code: "batch_expired", Message: "This request was not run before the batch's completion window ended."}
}

// Runs reports whether lines may run.
func (r *Record) Runs() bool { return r.Status == InProgress }

// Claim makes a node the keeper.
func (r *Record) Claim(node string) {
	r.Owner = node
	r.Beat++
}
