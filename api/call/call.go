// Package call runs the calls of the interfaces. A call is a request for each of its prompts, and its
// answer is one stream of events. It must not know a wire format, auth or the log of an answer.
package call

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"strings"
	"time"

	"github.com/millrace/millrace/api"
)

// Kind is one of the generation endpoints.
type Kind int

// The kinds of generation calls.
const (
	Chat Kind = iota
	Completion
	Messages       // Anthropic's
	OllamaChat     // Ollama's /api/chat
	OllamaGenerate // Ollama's /api/generate
	Responses      // OpenAI's Responses API
)

// The kinds of calls whose answers are vectors, or scores that are made of vectors. Logs of answers know the kinds above by number.
const (
	Embeddings      Kind = iota + 64
	Rerank               // documents by their relevance to a query
	Score                // pairs of texts
	OllamaEmbed          // Ollama's /api/embed
	OllamaEmbedding      // Ollama's /api/embeddings
	Classify             // the classes of texts
	Decisions            // the probabilities of answers to questions
)

// Call is a decoded generation call: a request for each prompt, and the form of the answer.
type Call struct {
	ID           string
	Named        bool // the client chose the ID, so another call may have the same one
	Kind         Kind
	Model        string
	Created      time.Time
	Stream       bool
	IncludeUsage bool // the stream ends with a chunk that has the usage
	TokenIDs     bool // the answer has token ids
	Proof        bool // the answer has its proof
	Echo         bool // each choice begins with the text of its prompt
	N            int  // choices per prompt
	Requests     []*api.Request
	Repeated     []byte   // fields of the request that its answer repeats, as JSON; only of the Responses API
	Resume       Resume   // whether the client can reconnect to the answer
	Parsing      Parsing  // of a chat: how the text is split
	Window       int      // requests that run at once; 0: all
	Ignored      []string // parts of the request that have no effect, though it does not say so: see Ignore
	Vectors      *Vectors
	Questions    []Question // with Decisions, one for each request
}

// Vectors is how the vectors of a call's requests become its answer.
type Vectors struct {
	Normalize  bool // each has length 1
	Dimensions int  // that are kept, the first ones; 0: all
	Base64     bool // little-endian float32 in base64

	// A call with scores has the following. Pairs are the requests whose vectors are compared. With Judged each pair is one request
	// instead: the model says whether the document fits, and its vector has two elements, the logits of the tokens "no" and "yes".
	Pairs     [][2]int
	Judged    bool
	Scored    string            // what becomes of the only logit of each pair, as of api.Classes; "": the model is no cross-encoder
	Documents []json.RawMessage // with Rerank, one for each pair; nil: the answer does not repeat them
	Most      int               // with Rerank: results; 0: all

	Classes api.Classes // with Classify
}

// Rename gives the call another ID, and its requests those that they would have with it: their seeds too, unless the client chose them.
func (c *Call) Rename(id string) {
	old := c.ID
	if prefix, _, ok := strings.Cut(old, "-"); ok {
		id = prefix + "-" + id
	}
	for _, r := range c.Requests {
		if r.Sampling.Seed == SeedOf(old) {
			r.Sampling.Seed = SeedOf(id)
		}
		r.ID = id + strings.TrimPrefix(r.ID, old)
	}
	c.ID = id
}

// SeedOf returns the seed of a request without one. It is a hash of the call's id, so decoding the same body with the same id gives the
// same requests.
func SeedOf(id string) uint64 {
	sum := sha256.Sum256([]byte(id))
	return binary.LittleEndian.Uint64(sum[:])
}

// Choices returns the number of choices in the answer.
func (c *Call) Choices() int { return len(c.Requests) * c.N }

// Resume is the "stream_resume" of a call: whether a client can reconnect to the answer.
type Resume int

// The values of "stream_resume".
const (
	ResumeUnset Resume = iota // absent: the server decides
	ResumeNo                  // false
	ResumeAuto                // "auto": yes if the server can keep the answer
	ResumeYes                 // true: the call fails if the server cannot keep the answer
)

// MaxRequestID is the maximum length of an ID that a client chooses, in bytes. The ID becomes a token
// of a NATS subject.
const MaxRequestID = 64

// ValidID reports whether a call's id can name a log: it has only letters, digits, '-' and '_'.
func ValidID(id string) bool {
	if id == "" || len(id) > MaxRequestID+len("chatcmpl-") {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}
