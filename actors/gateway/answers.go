package gateway

import (
	"fmt"

	"github.com/millrace/millrace/api"
)

// maxReads bounds the reads of one request.
const maxReads = 1024

// answers are the texts whose log probabilities a request wants as the beginning of its answer, see api.Pool. Their tokens are a tree. Each
// inner node is one read: a sequence whose prompt continues with the tokens up to there, and which ends with the log probabilities of the
// tokens that follow in any of the texts. The first read has those of all first tokens, so texts of one token need no other. The reads run
// one after the other, as one place of the queue: each finds the prompt in the prefix cache.
type answers struct {
	tokens  [][]int32
	sources [][]source // by answer and token
	reads   []read
	done    int // reads that have their log probabilities
}

type read struct {
	path     []int32   // the tokens of an answer so far
	next     []int32   // each once, in the order of the answers
	logprobs []float32 // of next
}

// source is where the log probability of a token is: in a read, among next.
type source struct{ read, at int }

// branch is a token after a read's path.
type branch struct {
	read  int
	token int32
}

// newAnswers returns the answers of a request with the given texts. The error is an *api.Error.
func newAnswers(texts []string, tokens [][]int32, vocab int) (*answers, error) {
	a := &answers{tokens: tokens, sources: make([][]source, len(tokens)), reads: []read{{}}}
	at, below, ends := make(map[branch]int), make(map[branch]int), make(map[branch]int)
	for i, ids := range tokens {
		node := 0
		for k, id := range ids {
			if id < 0 || int(id) >= vocab {
				return nil, api.Invalid("questions", "the answer %s: token %d is %d, the model has 0..%d", api.Quote(texts[i]), k, id,
					vocab-1)
			}
			e := branch{node, id}
			if _, ok := at[e]; !ok {
				at[e] = len(a.reads[node].next)
				a.reads[node].next = append(a.reads[node].next, id)
			}
			a.sources[i] = append(a.sources[i], source{node, at[e]})
			if k == len(ids)-1 {
				if first, again := ends[e]; again {
					return nil, api.Invalid("questions", "the answers %s and %s have the same tokens, expected different ones",
						api.Quote(texts[first]), api.Quote(texts[i]))
				}
				ends[e] = i
				break
			}
			child, ok := below[e]
			if !ok {
				child = len(a.reads)
				below[e] = child
				if a.reads = append(a.reads, read{path: ids[:k+1]}); len(a.reads) > maxReads {
					return nil,
						api.Invalid("questions",
							"the answers of a question have more than %d different beginnings of whole tokens: use shorter or fewer ones",
							maxReads)
				}
			}
			node = child
		}
	}
	return a, nil
}

// path is that of the next read; nothing of a nil a, and after the last one.
func (a *answers) path() []int32 {
	if a == nil || a.done == len(a.reads) {
		return nil
	}
	return a.reads[a.done].path
}

// pool is what the next read requests from its worker; for a nil a that of the request.
func (a *answers) pool(of *api.Pool) *api.Pool {
	if a == nil {
		return of
	}
	return &api.Pool{Pooling: api.PoolLogprobs, Tokens: a.reads[a.done].next}
}

// longest is the length of the longest path.
func (a *answers) longest() int {
	n := 0
	if a != nil {
		for i := range a.reads {
			n = max(n, len(a.reads[i].path))
		}
	}
	return n
}

// take takes the log probabilities of a read, and returns whether it was the last one.
func (a *answers) take(logprobs []float32) (last bool, err error) {
	r := &a.reads[a.done]
	if len(logprobs) != len(r.next) {
		return false, &api.Error{Code: api.CodeInternal, Message: fmt.Sprintf("a worker sent %d log probabilities, expected %d",
			len(logprobs), len(r.next))}
	}
	r.logprobs = logprobs
	a.done++
	return a.done == len(a.reads), nil
}

// result returns the log probabilities of all answers after the last read.
func (a *answers) result() []api.AnswerLogprobs {
	out := make([]api.AnswerLogprobs, len(a.tokens))
	for i, ids := range a.tokens {
		out[i] = api.AnswerLogprobs{Tokens: ids, Logprobs: make([]float32, len(ids))}
		for k, p := range a.sources[i] {
			out[i].Logprobs[k] = a.reads[p.read].logprobs[p.at]
		}
	}
	return out
}
