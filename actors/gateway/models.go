package gateway

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
)

// models are those that members have offered to a gateway.
type models struct {
	cluster Membership
	mu      sync.Mutex
	byID    map[string]*model
}

func newModels(c Membership) *models { return &models{cluster: c, byID: make(map[string]*model)} }

// model is what a gateway has to know of one. It is the least that its workers
// offer.
type model struct {
	api.Model
	slabs      int // positions of a pool that has all slabs of a beam search, see kvmgr.Need
	longest    int // positions of the longest sequence without beams
	slabTokens int
	capacity   int
	noBeams    bool               // a worker has no beam searches
	eos        map[string][]int32 // by text digest
}

// refresh brings the models up to date with the members. One whose workers
// are gone stays known: its requests end with 503, not with an error that it does not
// exist.
func (s *models) refresh() {
	fresh := make(map[string]*model)
	members := s.cluster.Members()
	for _, m := range members {
		w := m.Worker
		if w == nil {
			continue
		}
		x := fresh[m.Model]
		slabs, longest := w.Positions(w.Slabs), w.Longest(w.Slabs)
		if x == nil {
			fresh[m.Model] = &model{
				Model: api.Model{ID: m.Model, WeightFacts: w.WeightFacts}, slabs: slabs, longest: longest, slabTokens: w.SlabTokens,
				capacity: w.Capacity, noBeams: w.NoBeams,
			}
			continue
		}
		if w.ContextLength < x.ContextLength {
			x.ContextLength, x.Shortened = w.ContextLength, w.Shortened
		}
		x.slabs = min(x.slabs, slabs)
		x.longest, x.noBeams = min(x.longest, longest), x.noBeams || w.NoBeams
		x.Vocab, x.capacity = min(x.Vocab, w.Vocab), min(x.capacity, w.Capacity)
		if w.Embedding.Width == 0 { // of an earlier version
			x.Embedding = w.Embedding
		}
		x.Embedding.Rows = min(x.Embedding.Rows, w.Embedding.Rows)
		if w.Created.Before(x.Created) {
			x.Created, x.Sampling, x.Description = w.Created, w.Sampling, w.Description
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, x := range fresh {
		if old := s.byID[id]; old != nil {
			x.eos, x.TextFacts = old.eos, old.TextFacts
		}
		s.byID[id] = x
	}
	for _, m := range members {
		if x := s.byID[m.Model]; x != nil && m.Tokenizer != nil {
			x.knows(m.Text, m.Tokenizer.EOS)
		}
	}
	for _, m := range oldest(members) { // processes of two versions may differ for a while
		if x := s.byID[m.Model]; x != nil {
			x.TextFacts = m.Tokenizer.TextFacts
		}
	}
}

// oldest returns the oldest tokenizer of each model.
func oldest(members []*cluster.Member) map[string]*cluster.Member {
	all := make(map[string]*cluster.Member)
	for _, m := range members {
		if first := all[m.Model]; m.Tokenizer != nil && (first == nil || m.Started.Before(first.Started)) {
			all[m.Model] = m
		}
	}
	return all
}

// mostTextDigests bounds the text digests of a model whose end-of-sequence tokens are remembered.
const mostTextDigests = 64

// knows notes the end-of-sequence tokens of a text digest.
func (m *model) knows(text string, eos []int32) {
	if had, known := m.eos[text]; known && slices.Equal(had, eos) {
		return
	}
	fresh := make(map[string][]int32, len(m.eos)+1) // others read the old one
	if len(m.eos) < mostTextDigests {
		maps.Copy(fresh, m.eos)
	}
	fresh[text] = eos
	m.eos = fresh
}

// eos are the end-of-sequence tokens of a model's tokenizers of a text digest; false if none
// of them is known.
func (s *models) eos(model, text string) (eos []int32, known bool) {
	if eos, known = s.known(model, text); !known {
		s.refresh() // it may be new
		eos, known = s.known(model, text)
	}
	return eos, known
}

func (s *models) known(model, text string) (eos []int32, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.byID[model]; m != nil {
		eos, known = m.eos[text]
	}
	return eos, known
}

// get finds a model. The watch keeps what is known of it up to date; before its first
// look nothing is.
func (s *models) get(id string) (*model, error) {
	m, known := s.find(id)
	if m == nil {
		s.refresh()
		m, known = s.find(id)
	}
	if m != nil {
		return m, nil
	}
	expected := "no model yet: no worker is there"
	if len(known) > 0 {
		expected = fmt.Sprintf("expected %q", known[0])
		for _, id := range known[1:] {
			expected += fmt.Sprintf(" or %q", id)
		}
	}
	return nil, &api.Error{Code: api.CodeNotFound, Reason: "model_not_found", Param: "model",
		Message: fmt.Sprintf("model %s does not exist, %s", api.Quote(id), expected)}
}

// find returns a model, or the names of those that there are.
func (s *models) find(id string) (m *model, known []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m = s.byID[id]; m == nil {
		known = slices.Sorted(maps.Keys(s.byID))
	}
	return m, known
}

// list is what the cluster serves, the oldest first.
func (s *models) list() []api.Model {
	s.mu.Lock()
	none := len(s.byID) == 0
	s.mu.Unlock()
	if none {
		s.refresh()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]api.Model, 0, len(s.byID))
	for _, m := range s.byID {
		list = append(list, m.Model)
	}
	slices.SortFunc(list, func(a, b api.Model) int { return a.Created.Compare(b.Created) })
	return list
}
