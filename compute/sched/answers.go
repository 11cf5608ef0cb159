package sched

import (
	"math"
	"math/bits"
)

const (
	// priorAnswer is the predicted length, in tokens, while too few answers have ended.
	priorAnswer = 256
	// fewAnswers is the number of ends below which a histogram predicts nothing.
	fewAnswers = 16
	// forgetAt is the number of ends at which all counts are halved, so that the last few hundred decide.
	forgetAt = 512
	// mostTenants bounds the tenants with histograms of their own. The one that was used the longest ago makes room.
	mostTenants = 256

	lengthBins = 4 * 22 // four for each power of two
	promptBins = 4
)

// answers predicts the length of an answer from those that ended, by tenant and size of the prompt.
type answers struct {
	tenants map[string]*tenantAnswers
	all     [promptBins]histogram // of all tenants
	uses    uint64
}

type tenantAnswers struct {
	byPrompt [promptBins]histogram
	used     uint64 // answers.uses at the last use
}

// histogram counts answers by length.
type histogram struct {
	bins  [lengthBins]uint16
	total int
}

func newAnswers() answers { return answers{tenants: make(map[string]*tenantAnswers)} }

// promptBin returns the bin of a prompt: below 128 tokens, 1,024, 8,192, and above.
func promptBin(tokens int) int { return min(max((bits.Len(uint(tokens))-5)/3, 0), promptBins-1) }

// lengthBin returns the bin of a length.
func lengthBin(tokens int) int {
	return min(int(math.Ceil(4*math.Log2(float64(max(tokens, 1))))), lengthBins-1)
}

// longest returns the length that a bin is up to.
func longest(bin int) int { return int(math.Exp2(float64(bin) / 4)) }

// add notes the length of an answer.
func (a *answers) add(tenant string, prompt, length int) {
	bin := promptBin(prompt)
	a.tenant(tenant).byPrompt[bin].add(length)
	a.all[bin].add(length)
}

// predict returns the length that the share covered of a tenant's answers to prompts of about that size did not exceed, or else of
// everybody's.
func (a *answers) predict(tenant string, prompt int, covered float64) int {
	bin := promptBin(prompt)
	if t := a.tenants[tenant]; t != nil && t.byPrompt[bin].total >= fewAnswers {
		return t.byPrompt[bin].quantile(covered)
	}
	if a.all[bin].total >= fewAnswers {
		return a.all[bin].quantile(covered)
	}
	return priorAnswer
}

func (a *answers) tenant(name string) *tenantAnswers {
	t := a.tenants[name]
	if t == nil {
		if len(a.tenants) == mostTenants {
			a.forget()
		}
		t = &tenantAnswers{}
		a.tenants[name] = t
	}
	a.uses++
	t.used = a.uses
	return t
}

// forget removes the tenant that was used the longest ago.
func (a *answers) forget() {
	oldest := ""
	for name, t := range a.tenants {
		if o := a.tenants[oldest]; o == nil || t.used < o.used {
			oldest = name
		}
	}
	delete(a.tenants, oldest)
}

func (h *histogram) add(length int) {
	h.bins[lengthBin(length)]++
	if h.total++; h.total < forgetAt {
		return
	}
	h.total = 0
	for i := range h.bins {
		h.bins[i] /= 2
		h.total += int(h.bins[i])
	}
}

func (h *histogram) quantile(covered float64) int {
	want := max(int(math.Ceil(covered*float64(h.total))), 1)
	for bin, n := range h.bins {
		if want -= int(n); want <= 0 {
			return longest(bin)
		}
	}
	return longest(lengthBins - 1)
}
