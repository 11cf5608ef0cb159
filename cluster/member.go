// Package cluster keeps the list of processes that serve together, with their roles and load, and
// finds those that have gone silent.
//
// Every node sends a signed beat on one NATS subject a few times a second, and all nodes receive
// it. There is no store and no leader. A node that joins late knows the others after one beat
// interval. See docs/decisions/cluster.md.
//
// It must not know actors or how a worker is chosen.
package cluster

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/kvmgr"
)

// Node is the number of a process, of the Key that it makes when it starts: one that comes
// back is a new one.
type Node uint32

// String is the node's address in subjects, PIDs and logs.
func (n Node) String() string { return fmt.Sprintf("n%08x", uint32(n)) }

// First is the number before the first of a node's sequences: its own in the high
// half.
func (n Node) First() uint64 { return uint64(n) << 32 }

// Role is a part of the pipeline that a process has.
type Role string

// Roles of a process.
const (
	Gateway  Role = "gateway"  // HTTP and NATS interfaces, request actors
	Tokenize Role = "tokenize" // text to ids
	Compute  Role = "compute"  // the model
	Detok    Role = "detok"    // ids to text
	Prefill  Role = "prefill"  // the model, for new sequences: they move to Decode after their first token
	Decode   Role = "decode"   // the model, for sequences that Prefill began
)

// Roles lists those of a whole pipeline, in its order.
func Roles() []Role { return []Role{Gateway, Tokenize, Compute, Detok} }

// Computing lists the roles that run the model. A process has one of them at most.
func Computing() []Role { return []Role{Compute, Prefill, Decode} }

// ComputingOf returns the one of Computing that a list has, "" if it has none.
func ComputingOf(roles []Role) Role {
	for _, r := range Computing() {
		if slices.Contains(roles, r) {
			return r
		}
	}
	return ""
}

// Member is what a node says of itself.
type Member struct {
	Node     string    `json:"node"`
	Roles    []Role    `json:"roles"`
	Host     string    `json:"host,omitempty"`
	Process  int       `json:"process,omitempty"`
	HTTP     string    `json:"http,omitempty"` // address of health and metrics
	Version  string    `json:"version,omitempty"`
	Started  time.Time `json:"started"`
	Draining bool      `json:"draining,omitempty"` // takes nothing new
	Left     bool      `json:"left,omitempty"`     // its last word

	Model      string        `json:"model,omitempty"` // of tokenize, compute and detok
	Text       string        `json:"text,omitempty"`  // digest of the checkpoint's tokenizer and template, see api.Pin
	Tokenizer  *Tokenizer    `json:"tokenizer,omitempty"`
	Worker     *Worker       `json:"worker,omitempty"`
	Detok      *Pool         `json:"detok,omitempty"`
	Requests   int           `json:"requests,omitempty"` // of a gateway
	BeatsEvery time.Duration `json:"beats_every"`
}

// Pool is the actors of a stage.
type Pool struct {
	Actors []string `json:"actors"`
	Load   int      `json:"load"` // messages or sequences in hand
}

// Tokenizer is a tokenize process's pool, with what its files say of the model.
type Tokenizer struct {
	Pool
	api.TextFacts
}

// Worker is a compute process.
type Worker struct {
	Actor    string `json:"actor"`
	Backend  string `json:"backend"`
	Weights  string `json:"weights"`
	Numerics string `json:"numerics,omitempty"` // digest, see api.Pin
	Class    string `json:"class,omitempty"`    // name of the numerics class of its kernels, for people
	api.WeightFacts

	Slabs      int `json:"slabs"`
	FreeSlabs  int `json:"free_slabs"` // neither used nor promised
	UsedSlabs  int `json:"used_slabs"`
	Cached     int `json:"cached_slabs"`   // kept for their tokens alone
	Promised   int `json:"promised_slabs"` // reserved, not leased yet
	kvmgr.Need     // of a sequence
	// Layout is the order of the bytes in a slab. Workers of equal layout and numerics copy slabs from each other.
	Layout string `json:"layout,omitempty"`

	Generated    uint64 `json:"generated"`     // tokens since the start
	PrefixTokens uint64 `json:"prefix_tokens"` // tokens of prompts since the start
	PrefixHits   uint64 `json:"prefix_hits"`   // of these, found in the prefix cache

	Capacity int `json:"capacity"` // sequences of a step
	Queue    int `json:"queue"`    // sequences that it takes beyond them
	Running  int `json:"running"`
	Waiting  int `json:"waiting"`
	// Gateways is how many of the running and waiting sequences each gateway has there, by node.
	Gateways map[string]int `json:"gateways,omitempty"`
	Steps    uint64         `json:"steps"`
	InStep   time.Duration  `json:"in_step"` // since the last progress, with work at hand
	Down     string         `json:"down,omitempty"`
}

// Has says whether the member has a role.
func (m *Member) Has(r Role) bool {
	return slices.Contains(m.Roles, r)
}
