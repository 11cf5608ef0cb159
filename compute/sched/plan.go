package sched

// Plan is what to do now: the effects for the KV manager and the requests, and
// the step for the device. It is read-only and valid until the next Step.
//
// Order: Release, Spill, Restore, Reserve and Lease go to the KV manager in this order, by one
// sender, so that released KV is free for the reservations.
type Plan struct {
	Step uint64 // counts from 1

	// Chunks are the step's rows: decode rows first, then prompt chunks. Rows
	// of a chunk follow each other on the token axis, in the order of Chunks.
	Chunks     []Chunk
	Rows       int // all rows; 0: nothing for the device, wait for an event
	DecodeRows int
	PromptRows int
	Outputs    int // rows of which logits are wanted

	Release []ID          // KV to free, exactly once for each granted sequence
	Spill   []Spill       // at most one; answered by Spilled or Kept
	Restore []Reservation // at most one; answered by Granted, with all tokens of the Spill, or by Kept or Lost
	Reserve []Reservation // answered in order by Granted or Denied, up to the first Denied that is not for good
	Lease   []Lease       // answered by Granted
	Ended   []End         // exactly once for each submitted sequence

	// Running sequences that are not in the step: Stalled lack a lease or a part of it, Paused lack one because their growth
	// was denied, or are on their way to the tier, Held wait for the waiting-served ratio, Awaiting have an output not yet sampled, Yielded
	// give way to another tenant's prompt, Deferred take turns while migrated sequences are computed again, Idle wait for an idle step.
	Stalled, Paused, Held, Awaiting, Yielded, Deferred, Idle int

	// Wake is the earliest deadline: call Step then even without an event. 0: none.
	Wake Time

	// Hold says that the plan has no rows because waiting sequences may begin in the step. Call Step
	// again with the answer to Reserve, or without it when it is late.
	Hold bool
}

// Chunk is a run of tokens of one sequence: positions Start to Start+Rows-1,
// in rows Row to Row+Rows-1 of the step. Positions before Start are in the KV
// cache. Output: the logits of the last row are wanted; exactly one Sampled or
// Finished answers it.
//
// With Beams each row is one beam. All are at Start, and the logits of all are wanted.
//
// Drafts is the number of draft tokens at the end. Their logits and those of the row before them
// are wanted, but not those of the first Forced rows of these: the tokens that follow them are known.
type Chunk struct {
	ID     ID
	Row    int
	Start  int
	Rows   int
	Beams  int // 0: none
	Drafts int
	Forced int // of Drafts
	Output bool
	Scored bool // the logits of all rows are wanted
	// Snapshot says that others may begin with the state that the chunk ends with: it is to be copied before the sequence's next rows.
	Snapshot bool
}

// end returns the position after the chunk.
func (c *Chunk) end() int {
	if c.Beams > 0 {
		return c.Start + 1
	}
	return c.Start + c.Rows
}

// outputs is the number of rows of which logits are wanted.
func (c *Chunk) outputs() int {
	if c.Scored {
		return c.Rows
	}
	if !c.Output {
		return 0
	}
	return max(c.Beams, 1) + c.Drafts - c.Forced
}

// Reservation requests KV for Tokens tokens in all, the first Promise of them promised and the first Lease of these leased
// at once, or with a window as many of them as may be: see Event.Lease. With Beams the first Prompt tokens are kept once, and those after
// them for each beam.
type Reservation struct {
	ID      ID
	Tokens  int
	Promise int
	Lease   int
	Prompt  int
	Beams   int // 0: none
}

// Lease requests physical slabs for the first UpTo tokens, of Promise tokens that are promised. It is always granted if
// these were promised before; if not, Paused may answer it. No step reads the tokens before From any more: the slabs that hold
// nothing else are given back first.
type Lease struct {
	ID      ID
	UpTo    int
	Promise int
	From    int
}

// Spill moves the KV of a running sequence's first Tokens tokens, all that are computed, to the tier. The sequence is in no step from
// here on.
type Spill struct {
	ID     ID
	Tokens int
}

// End is the end of a sequence.
type End struct {
	ID        ID
	Reason    Reason
	Generated int // tokens sampled
}

// reset empties the plan of the last step, field by field: one assignment of a whole Plan takes several times as long.
func (p *Plan) reset() {
	p.Step++
	p.Chunks, p.Release, p.Reserve, p.Lease, p.Ended = p.Chunks[:0], p.Release[:0], p.Reserve[:0], p.Lease[:0], p.Ended[:0]
	p.Spill, p.Restore = p.Spill[:0], p.Restore[:0]
	p.Rows, p.DecodeRows, p.PromptRows, p.Outputs = 0, 0, 0, 0
	p.Stalled, p.Paused, p.Held, p.Awaiting, p.Yielded, p.Deferred, p.Idle = 0, 0, 0, 0, 0, 0, 0
	p.Wake, p.Hold = 0, false
}
