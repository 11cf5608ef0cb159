package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/api"
)

// Kinds counts the live processes of a model by the digests that decide their answers. With more than
// one digest the pool is mixed, and a request can continue only at the kind that began it.
type Kinds struct {
	Numerics map[string]int    // workers by numerics digest
	Text     map[string]int    // workers, tokenizers and detokenizers by text digest
	Class    map[string]string // name of the kernels' class by numerics digest
}

// KindsOf counts members by model. Draining members count; pure gateways do not.
func KindsOf(members []*Member) map[string]*Kinds {
	models := make(map[string]*Kinds)
	for _, m := range members {
		if m.Worker == nil && m.Tokenizer == nil && m.Detok == nil {
			continue
		}
		k := models[m.Model]
		if k == nil {
			k = &Kinds{Numerics: map[string]int{}, Text: map[string]int{}, Class: map[string]string{}}
			models[m.Model] = k
		}
		k.Text[m.Text]++
		if w := m.Worker; w != nil {
			k.Numerics[w.Numerics]++
			k.Class[w.Numerics] = w.Class
		}
	}
	return models
}

// Workers lists the workers for people: "workers: 2 of 0123456789abcdef (avx2)".
func (k *Kinds) Workers() string {
	if k == nil {
		return listed(nil, "workers", nil)
	}
	return listed(k.Numerics, "workers", k.Class)
}

// Texts lists the processes by text digest, as Workers does.
func (k *Kinds) Texts() string {
	if k == nil {
		return listed(nil, "processes", nil)
	}
	return listed(k.Text, "processes", nil)
}

// mostListed bounds what a message lists.
const mostListed = 8

func listed(digests map[string]int, what string, class map[string]string) string {
	if len(digests) == 0 {
		return "no " + what
	}
	var list []string
	for _, d := range slices.Sorted(maps.Keys(digests)) {
		if len(list) == mostListed {
			list = append(list, fmt.Sprintf("and %d more", len(digests)-mostListed))
			break
		}
		one := fmt.Sprintf("%d of %s", digests[d], digestText(d))
		if class[d] != "" {
			one += " (" + class[d] + ")"
		}
		list = append(list, one)
	}
	return what + ": " + strings.Join(list, ", ")
}

func digestText(d string) string {
	if d == "" {
		return "no digest"
	}
	return api.ShortDigest(d)
}
