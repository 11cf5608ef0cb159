// Package msg holds every message between the actors of the pipeline.
//
//	api -> request: CancelRequest     failure -> request: Abandon
//	request -> tokenizer: Tokenize -> Tokenized
//	request -> detok: OpenText, CloseText
//	request -> compute: Generate, Find, Redirect, Cancel.
//	compute -> kv: KVRound, which comes back with the answer
//	compute -> request: Started, Found, Lost
//	compute -> watch: Progress
//	compute -> detok: Tokens -> request: Text      detok -> compute: Cancel
//	watch -> request: Lost, Retry
//	prefixes -> blocks: ListBlocks -> Blocks
//	request -> kv: Prefetch -> Prefetched       kv -> kv, of another process: Fetch -> Slab
//	compute -> kv: Import -> Imported, KVCopied  kv -> compute: KVReady, KVMoved
//
// An actor may be in another process: its PID says so, and nothing else does. What
// Marshal knows can be sent there. Such a message may be lost, and after it
// everything that the same process sends, until the connection is back: whoever
// waits for an answer must notice that none comes (see watch of package gateway).
// The package must not know what an actor does with a message.
package msg

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/detok"
	"github.com/millrace/millrace/tracing"
)

// SeqID names a sequence: one choice of one request. It is unique in a cluster: the
// high half is its node's.
type SeqID uint64

// Tokenize requests the ids of a text or a chat, the tokens of texts in parameters and of answers, and that a grammar is compiled; the
// answer is a Tokenized to Reply.
type Tokenize struct {
	Reply   *actor.PID
	Input   *api.TokenizeRequest // nil: only the grammar and the texts
	Grammar *grammar.Spec        // nil: none
	Tenant  string               // with Grammar
	Texts   *sample.Texts        // of the sampling parameters; nil: none
	Answers []string             // texts that the answer to Input, a chat, may begin with
	Trace   tracing.Parent
}

// Tokenized answers Tokenize. Err is an *api.Error.
type Tokenized struct {
	Tokens  []int32
	Second  int                // of a pair: where the tokens of type 1 begin
	Text    string             // digest of the node that made them, see api.Pin
	Checked bool               // the grammar can be compiled; earlier versions do not know grammars
	Thought tools.Thought      // of a chat: what the end of the prompt says of reasoning
	Texts   *sample.TextTokens // nil: there are none, or an earlier version does not know them
	Answers [][]int32          // tokens of each of Tokenize.Answers after Tokens; nil as Texts
	Err     error
}

// Detokenize requests the text of ids; the answer is a Detokenized to Reply.
type Detokenize struct {
	Reply  *actor.PID
	Tokens []int32
}

// Detokenized answers Detokenize. Err is an *api.Error.
type Detokenized struct {
	Text string
	Err  error
}

// OpenText comes before the first Tokens of a sequence.
type OpenText struct {
	Seq     SeqID
	Reply   *actor.PID // gets Text
	Compute *actor.PID // gets Cancel at a stop string
	Options detok.Options
	History []int32 // of a sequence that began elsewhere: its text has been sent
	Trace   tracing.Parent
}

// CloseText forgets a sequence that continues elsewhere, if its text is of the owner, a node: another one may have
// taken it over meanwhile. "": whoever has it.
type CloseText struct {
	Seq   SeqID
	Owner string
}

// Generate starts a sequence at the worker. Its tokens, and its end, go
// to Detok. With Beams it is a beam search, whose best answers become Choices.
type Generate struct {
	Seq        SeqID
	Choices    []SeqID    // Seq; with Beams one for each answer, the first of them Seq
	First      int        // choice of the request that Choices begin at
	RequestID  string     // with its tenant: api.Request.OriginKey
	Text       string     // digest of what made the prompt's ids
	Reply      *actor.PID // gets Started
	Watch      *actor.PID // gets Progress
	Detok      *actor.PID
	Prompt     []int32
	Second     int     // of a pair for an encoder: where the tokens of type 1 begin in Prompt; 0: there is one text
	Generated  []int32 // of a sequence that began elsewhere: what followed Prompt there
	MaxTokens  int     // >= len(Generated), which counts; equal: only the end is missing
	StopTokens []int32 // each ends the sequence, with finish reason "stop"
	Sampling   sample.Params
	Pool       *api.Pool // what the end has in place of tokens; nil: none
	// alternatives of each token of the prompt, whose log probabilities come with the first Token; nil: none are wanted
	Scored    *int
	Beams     *sample.BeamParams // nil: none
	Grammar   *grammar.Spec      // nil: none
	Longest   bool               // with Grammar: it ends only where nothing else may follow (ignore_eos)
	Tenant    string
	CacheSalt string // as in api.Request
	Weight    int    // of the tenant
	Migrated  bool   // admitted before, at another worker or by another gateway: no full queue refuses it
	Priority  int
	Deadline  time.Time // zero: none
	Arrival   time.Time
	Trace     tracing.Parent
	Source    *Source // of keys and values that another worker has; nil: none
}

// Whole reports whether every token of the prompt has to be computed: cached ones have no hidden states and no logits.
func (g *Generate) Whole() bool { return g.Pool.Whole() || g.Scored != nil }

// Find requests from the worker the sequences that it still has of a request whose process
// is gone. The answer is a Found to Reply for each of them, and with End one more without Seqs.
type Find struct {
	RequestID string // as Generate.RequestID
	Reply     *actor.PID
	End       bool // false from processes of earlier versions
}

// Found answers Find: Redirect takes the sequence over.
type Found struct {
	Seqs    []SeqID // as Generate.Choices; none: that is all
	First   int     // choice of the request that Seqs begin at
	Pin     api.Pin // of the worker and the prompt
	Compute *actor.PID
}

// Redirect makes the worker send a sequence's tokens to another Detok, from index
// From on, and everything else to Reply and Watch, whose sequence it is from here on. The
// answer is Lost if the sequence is not there or has ended, else none.
type Redirect struct {
	Seq   SeqID
	Reply *actor.PID
	Watch *actor.PID
	Detok *actor.PID
	From  int // 0 with beams
}

// Cancel ends a sequence. An unknown one is ignored: it has just ended. So is one that
// another node has taken over: Owner is the node that it is believed to be of, "" any.
type Cancel struct {
	Seq   SeqID
	Owner string
}

// CancelRequest ends a request at once with FinishCancelled, or with FinishError
// and Err if that is not nil. Moved: another process continues it, and its sequences.
type CancelRequest struct {
	Err   error
	Moved bool
}

// Abandon says that the worker of this process is gone, because of Err, and may
// never answer again.
type Abandon struct{ Err error }

// Tokens are the tokens of one step for one detokenizer.
type Tokens struct{ Tokens []Token }

// Token is a sampled token, the end of its sequence, or both.
type Token struct {
	Seq     SeqID
	ID      int32 // -1: none, only the end
	Index   int   // 0 for the first generated token; at an end without ID the tokens before it
	Logprob float32
	Cached  int32 // with Index 0: leading tokens that the worker had computed before the sequence began
	Top     []sample.Alternative
	Extra   *Extra     // of few tokens; else nil
	Stopped bool       // ID is a stop token: it ends the text and is not part of it
	Finish  api.Finish // set on the last one
	Lost    bool       // with FinishError: the worker failed, another one may continue
	Err     error      // with FinishError: an *api.Error
}

// Extra is what few tokens have: the first one with Generate.Scored, or the end of a sequence.
type Extra struct {
	Vector []float32       // of a sequence with a Pool, at its end
	Scored bool            // Prompt counts, even when it is empty
	Prompt []sample.Scored // with Generate.Scored, of the tokens after the prompt's first one
	First  int32           // with Prompt: the prompt's first token
}

// Text is what a token added to the answer of a sequence.
type Text struct {
	Seq      SeqID
	Text     string
	Token    int32 // -1: none
	Cached   int32 // as Token
	Index    int   // of Token, see there
	Logprobs []api.TokenLogprob
	Extra    *api.Extra // of Token's
	Finish   api.Finish
	Stop     string // the stop string that ended the text; "": none
	Lost     bool   // as Token
	Gap      bool   // the detokenizer has not got the tokens before Token: there is no text
	Err      error
}

// Progress says what a worker has of the sequences of one node. It comes every
// ProgressEvery, from beside the loop that makes the steps.
type Progress struct {
	Node      string
	Seqs      []SeqID
	Generated []int         // of each of Seqs: tokens sent on, with those of the history
	InStep    time.Duration // since the last progress, with work at hand
}

// ListBlocks requests what a worker's prefix cache has; the answer is a Blocks to Reply. From the first one on the
// worker publishes events of package cluster/prefix.
type ListBlocks struct{ Reply *actor.PID }

// Blocks is a prefix.Snapshot of a worker.
type Blocks struct {
	Node   string
	Number uint64
	Salt   []byte
	IDs    []uint64
}

// ProgressEvery is the time between two reports.
const ProgressEvery = 200 * time.Millisecond

// ComputeActor is the name of the inbox that gets Generate, in every process that computes.
const ComputeActor = "compute"

// BlocksActor is the name of the actor that gets ListBlocks, in every process that computes.
const BlocksActor = "blocks"

// OrphansAfter is longer than a node takes to come back from a cut connection. What runs for
// a node that has been dead for this time ends: nobody will come for it.
const OrphansAfter = 10 * time.Second

// WorkerForgot is the Why of a Lost from a worker that has not the sequence.
const WorkerForgot = "worker_forgot"

// Lost says that a sequence has to continue elsewhere.
type Lost struct {
	Seq SeqID
	Why string
}

// Retry says that what could not be placed may have found its place.
type Retry struct{}

// Started says that the first row of a sequence is in a step.
type Started struct{ At time.Time }

// KVRound is what the worker's loop needs of the KV manager in a round. The manager does it in the
// order of the fields Commit to Extend, fills in the answer and sends the message back to Reply. Until
// then the message is the manager's; after that the loop may send it again.
type KVRound struct {
	Reply *actor.PID

	Commit  []Commit  // offers computed slabs to other sequences
	Release []SeqID   // gives back the slabs of these sequences
	Forget  bool      // the device has lost what its KV memory held
	Spill   []Spill   // copies slabs of paused sequences to the tier
	Restore []Reserve // copies them back: the tokens that were there are those before it, so Known is not needed
	Reserve []Reserve // sets slabs aside for whole sequences, up to the first that is denied for now
	Extend  []Extend  // leases more slabs to sequences
	Lend    []Lend    // requests slabs for snapshots of states
	Rows    int       // decode rows of the worker's sequences, with those that wait

	Granted []Granted
	Denied  []Denied
	Kept    []SeqID // of Spill and Restore: they stay where they are
	Paused  []SeqID // that may not grow until others release slabs
	Parked  []Parked
	Ready   []SeqID // whose wait has ended: they may reserve again
	Lent    []Lent
}

// Commit offers the slabs of a sequence's first tokens to other sequences. The keys and values of these tokens are
// written.
type Commit struct {
	Seq    SeqID
	Tokens []int32
	Tail   bool // also the last slab, if the tokens do not fill it
	// State says that the state after the tokens is there: in the slabs that were lent for it, or with Tail in the sequence's own ones. It
	// computes nothing then.
	State bool
}

// Lend requests slabs for a copy of a sequence's state after its first tokens, which it has after the step that runs.
type Lend struct {
	Seq    SeqID
	Tokens int
}

// Lent answers a Lend. The state is copied before anything else of the answer's round or a later one is written to the slabs, or it is not
// copied. A Commit says that it is there.
type Lent struct {
	Seq    SeqID
	Tokens int
	Slabs  []int32 // nil: there is no use or no room for a copy
}

// Spill moves the slabs of a sequence's first tokens, which no step reads or writes from here on, to the tier. The answer is one of
// KVRound.Kept, or a KVMoved.
type Spill struct {
	Seq    SeqID
	Tokens int
}

// KVMoved says to the worker's loop that copies to or from the tier have ended. Those of Lost, which may be in Spilled too, have
// nothing any more: they are computed again.
type KVMoved struct {
	Spilled []SeqID
	Lost    []SeqID
	Granted []Granted // with all slabs
}

// Reserve requests slabs for a whole sequence, and to lease the first of them at once. The answer is
// a Granted or a Denied, or none after a Denied: the sequence does not pass the one that was denied.
type Reserve struct {
	Seq     SeqID
	Tokens  int // in all; of each beam, if there are any
	Promise int // of Tokens, those to promise slabs for; without beams
	Lease   int // tokens to lease slabs for
	Prompt  int // of Tokens
	Beams   int // 0: none; else the tokens that follow the prompt are kept for each
	// Known are the first tokens, and Space is what their keys and values depend on besides: sequences share
	// slabs of equal tokens within a space. Nothing is shared without Known.
	Known []int32
	Space string
}

// Extend requests physical slabs, so that the sequence's hold UpTo tokens, of Promise that are promised. The answer is a
// Granted. If not all of these were promised before, it may be one of Paused. Slabs with tokens before From alone are given back, before
// KVRound.Spill: they are not mapped any more.
type Extend struct {
	Seq     SeqID
	UpTo    int
	Promise int
	From    int
}

// Granted has the new slabs of a sequence, which follow those leased before.
type Granted struct {
	Seq   SeqID
	UpTo  int // tokens that the sequence's slabs hold now, or did before they were given back; at most those requested
	First int // position of the first of Slabs, when a sequence begins or returns: it needs none before it
	Slabs []int32
	// Computed counts the leading tokens that need no step, when a sequence begins. Before its first step the first CopyTokens
	// tokens of each slab of CopyFrom are copied to the one at its place in CopyTo, if there are any.
	Computed         int
	CopyFrom, CopyTo []int32
	CopyTokens       int
	Branch           int // as of kvmgr.Hit
}

// Denied says that nothing was set aside for a sequence. Never: the pool is too small even
// when it is empty. NoMemory: the machine has no memory for it, and no sequence runs that will give some back.
type Denied struct {
	Seq              SeqID
	Need, Free, Pool int // slabs
	Never, NoMemory  bool
}

// Parked is a reservation that waits: another sequence computes what its prompt begins with. By may be a copy on its way from
// another worker or the disk.
type Parked struct{ Seq, By SeqID }

// Empty says whether there is nothing to ask.
func (m *KVRound) Empty() bool {
	return len(m.Release)+len(m.Spill)+len(m.Restore)+len(m.Reserve)+len(m.Extend)+len(m.Lend)+len(m.Commit) == 0 && !m.Forget
}

// Reset empties the message and keeps its room.
func (m *KVRound) Reset() {
	clear(m.Reserve) // these hold tokens
	clear(m.Commit)
	*m = KVRound{
		Reply: m.Reply, Release: m.Release[:0], Spill: m.Spill[:0], Restore: m.Restore[:0], Kept: m.Kept[:0], Reserve: m.Reserve[:0],
		Extend: m.Extend[:0], Commit: m.Commit[:0], Granted: m.Granted[:0], Denied: m.Denied[:0], Paused: m.Paused[:0],
		Parked: m.Parked[:0], Ready: m.Ready[:0], Lend: m.Lend[:0], Lent: m.Lent[:0],
	}
}
