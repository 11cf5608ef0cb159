package sched

import (
	"fmt"
	"time" //nolint:depguard // for the type of a duration; there is no clock here
)

// Time is a duration since any fixed start, the same one for all events.
type Time = time.Duration

// ID names a sequence. Do not reuse one while events of it may still arrive.
type ID uint64

// Sequence describes a choice of a request to the scheduler.
type Sequence struct {
	ID           ID
	PromptTokens int  // at least 1; a migrated sequence counts its tokens so far
	MaxNewTokens int  // at least 1
	Answered     int  // tokens of PromptTokens that are the beginning of its answer, made elsewhere
	Scored       bool // the logits of every token of the prompt are wanted
	AtOnce       bool // all tokens of the prompt are in one step, and nothing follows them
	Beams        int  // 0: none; else each token after the prompt is a row for each of them
	Priority     int  // lower runs first
	Tenant       string
	Weight       int  // of the tenant, up to MaxWeight; 0: 1
	Migrated     bool // it began at another worker, and its reader waits: no full queue refuses it, and it precedes new ones
	Copied       bool // its KV came with it, and memory is set aside: it waits for none that others return
	Arrival      Time // order within a priority
	Deadline     Time // ended when it passes, in whatever state; 0: none
}

// EventKind is the kind of an Event.
type EventKind uint8

// Kinds of events, made by the functions of the same names.
const (
	KindSubmit EventKind = iota + 1
	KindCancel
	KindGranted
	KindDenied
	KindParked
	KindReady
	KindSampled
	KindFinished
	KindPaused
	KindSpilled
	KindKept
	KindLost
	KindFreed
)

// Event is something that happened since the last step. The functions below
// make them; which fields count depends on Kind.
type Event struct {
	Kind     EventKind
	Never    bool   // Denied: larger than the pool
	Reason   Reason // Finished
	ID       ID
	By       ID        // Parked: the sequence that computes
	Sequence *Sequence // Submit; apart, because each token is an event
	Tokens   int       // Granted: leased up to; Sampled: taken
	Drafts   int       // Sampled: draft tokens for the next step
	Forced   int       // Sampled: of Drafts, the first ones, which are right for sure
	Computed int       // Granted, of a sequence that begins: its first tokens that are in the KV cache
	Branch   int       // Granted, of a sequence that begins: of the kvmgr.Hit; 0: none
	Lease    int       // Granted, of a sequence that begins: tokens of all parts of the grant; 0: as many as were requested
	Need     int       // Denied, in slabs: for the transcript
	Free     int       // Denied, in slabs: for the transcript
}

// Submit brings a new sequence, which the scheduler copies.
func Submit(q *Sequence) Event { return Event{Kind: KindSubmit, ID: q.ID, Sequence: q} }

// Cancel ends a sequence in any state; an ended or unknown one is ignored.
func Cancel(id ID) Event { return Event{Kind: KindCancel, ID: id} }

// Granted answers a Reserve, a Restore or a Lease: the reservation holds, and the first
// leased tokens are backed by slabs. It may come in parts: the ones after the first, for the same sequence, have more
// tokens, up to those that were requested.
func Granted(id ID, leased int) Event { return Event{Kind: KindGranted, ID: id, Tokens: leased} }

// GrantedPrefix is Granted for a sequence that begins, and whose first computed tokens are in the KV cache: fewer than
// its prompt has. It has no rows until a part of the grant has more than the computed tokens.
func GrantedPrefix(id ID, leased, computed int) Event {
	return Event{Kind: KindGranted, ID: id, Tokens: leased, Computed: computed}
}

// Denied answers a Reserve: need slabs, free ones are too few for now. The
// sequence keeps its place, and reservations after it have no answer.
func Denied(id ID, need, free int) Event {
	return Event{Kind: KindDenied, ID: id, Need: need, Free: free}
}

// Parked answers a Reserve: another sequence computes the beginning of the prompt. The sequence keeps its place, others
// pass it, and it reserves again after Ready. Until then it lends its place to by, if that is a sequence that runs.
func Parked(id, by ID) Event { return Event{Kind: KindParked, ID: id, By: by} }

// Ready ends the wait of a parked sequence.
func Ready(id ID) Event { return Event{Kind: KindReady, ID: id} }

// NoMemory answers a Reserve: the machine has no memory for need slabs, of which free ones can be promised, and nothing that runs will give
// some back. The sequence ends.
func NoMemory(id ID, need, free int) Event {
	return Event{Kind: KindDenied, ID: id, Need: need, Free: free, Never: true, Reason: ReasonNoMemory}
}

// NeverFits answers a Reserve: the pool is too small. It ends the sequence.
func NeverFits(id ID, need, pool int) Event {
	return Event{Kind: KindDenied, ID: id, Need: need, Free: pool, Never: true}
}

// Paused answers a Lease beyond the promise: the sequence may not grow yet. It keeps its KV, and the scheduler requests
// more again when KV was given back.
func Paused(id ID) Event { return Event{Kind: KindPaused, ID: id} }

// Spilled answers a Spill: the sequence's KV is in the tier, and its slabs were given back.
func Spilled(id ID) Event { return Event{Kind: KindSpilled, ID: id} }

// Kept answers a Spill or a Restore that may not be for now: the sequence stays where it is.
func Kept(id ID) Event { return Event{Kind: KindKept, ID: id} }

// Lost says that the KV of a sequence in the tier cannot be read, and was given back. The sequence is computed again.
func Lost(id ID) Event { return Event{Kind: KindLost, ID: id} }

// Freed says that KV was given back that no Release of the last plan names: one that was sent later, or room for a
// sequence of another worker that did not come. The scheduler repeats requests that were denied meanwhile.
func Freed() Event { return Event{Kind: KindFreed} }

// Sampled says that a token was sampled from the sequence's last output (one for each
// beam) and that the sequence continues. At MaxNewTokens tokens the scheduler ends it.
func Sampled(id ID) Event { return Accepted(id, 1, 0) }

// Accepted is Sampled for a chunk with draft tokens: tokens is the number of tokens sampled, the last
// one from the output after the last accepted draft token. drafts is the number of draft tokens for the
// next step; with beams it is 0.
func Accepted(id ID, tokens, drafts int) Event {
	return Event{Kind: KindSampled, ID: id, Tokens: tokens, Drafts: drafts}
}

// Forced is Accepted where the first forced ones of the draft tokens are right for sure, because a grammar allows no others. They enter
// the step outside of Config.DraftRows, and have no logits.
func Forced(id ID, tokens, drafts, forced int) Event {
	return Event{Kind: KindSampled, ID: id, Tokens: tokens, Drafts: drafts, Forced: forced}
}

// Finished ends a sequence with one of ReasonStop to ReasonError: in place of Sampled for an end-of-sequence token,
// or at any later time for a stop string that detokenizing found. An ended or
// unknown one is ignored.
func Finished(id ID, r Reason) Event { return Event{Kind: KindFinished, ID: id, Reason: r} }

// Reason says why a sequence ended.
type Reason uint8

// Reasons for the end of a sequence.
const (
	ReasonNone      Reason = iota
	ReasonStop             // end-of-sequence token, stop token or stop string
	ReasonLength           // MaxNewTokens
	ReasonCancelled        //
	ReasonError            // the device or a stage failed
	ReasonDeadline         // the deadline passed
	ReasonQueueFull        // refused: MaxBatchSize + MaxWaiting sequences are here, of the tenant its share
	ReasonTooLong          // refused: longer than the context limit or the KV pool
	ReasonInvalid          // refused: no prompt, no token to make, or more beams than MaxBatchSize
	ReasonNoMemory         // refused: the machine has no memory for its KV
)

var reasonNames = [...]string{"none", "stop", "length", "cancelled", "error", "deadline", "queue-full", "too-long", "invalid", "no-memory"}

func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}
