package gateway

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster/route"
)

// bond is what an answer is bound to. Its text digest comes with the prompt's ids, its
// numerics digest, for all choices, with the first place of a sequence. Until a token
// exists both may be chosen again; from then on the answer continues at equals only.
type bond struct {
	pin         api.Pin
	text        bool // pin.Text is chosen
	numerics    bool // pin.Numerics is chosen
	fixed       bool // a token exists
	reported    api.Pin
	hasReported bool // reported was in an event
}

// bondOf is the bond of a request, or of what another process had of it.
func bondOf(r *api.Request) bond {
	had := r.Takeover
	switch {
	case had == nil && r.Equal == nil:
		return bond{}
	case had == nil:
		return bond{pin: api.Pin{Numerics: r.Equal.Numerics, Text: r.Equal.Text}, text: true, numerics: true, fixed: true}
	}
	p := had.Pin // without digests, of an older process or of an answer that has not begun, it binds nothing
	begun := slices.ContainsFunc(had.Choices, func(c api.ChoiceProgress) bool { return len(c.Tokens) > 0 || c.Finish != api.FinishNone })
	return bond{pin: p, text: p.Text != "", numerics: p.Numerics != "", fixed: begun, reported: p, hasReported: true}
}

// prompted takes the ids of the prompt and the digest of what made them.
func (b *bond) prompted(ids []int32, text string) error {
	hash := api.HashPrompt(ids)
	if had := b.pin.Prompt; had != "" && had != hash {
		return &api.Error{Code: api.CodeUnavailable, Reason: reasonPromptChanged, Message: fmt.Sprintf(
			"the prompt has become other tokens: found hash %s, expected %s, that of the answer so far, which cannot be continued: send the request again",
			api.ShortDigest(hash), api.ShortDigest(had))}
	}
	if b.text && b.pin.Text != text {
		return &api.Error{Code: api.CodeInternal, Message: fmt.Sprintf(
			"the prompt's tokens are of text digest %q, expected %q", api.ShortDigest(text), api.ShortDigest(b.pin.Text))}
	}
	b.pin.Prompt, b.pin.Text, b.text = hash, text, true
	return nil
}

// placed takes the digest of the worker of a sequence. The first is that of all.
func (b *bond) placed(numerics string) {
	if !b.numerics {
		b.pin.Numerics, b.numerics = numerics, true
	}
}

// admits says whether a sequence that was begun with a pin is one of this answer.
func (b *bond) admits(pin api.Pin) bool {
	return (!b.numerics || pin.Numerics == b.pin.Numerics) && pin.Text == b.pin.Text && pin.Prompt == b.pin.Prompt
}

// texts is what tokenizers and detokenizers have to be equal to.
func (b *bond) texts() route.Bond { return route.Bond{Bound: b.text, Digest: b.pin.Text} }

// bind limits a query to equals. Workers of one numerics digest have the same weights:
// the query does not need the checkpoint's text digest then.
func (b *bond) bind(q *route.Query) {
	if q.Numerics = (route.Bond{Bound: b.numerics, Digest: b.pin.Numerics}); !b.numerics {
		q.Text = b.texts()
	}
}

// again forgets the choice.
func (b *bond) again() { *b = bond{} }

// tell is the pin for the next event, nil if the one before said it.
func (b *bond) tell() *api.Pin {
	if b.hasReported && b.reported == b.pin {
		return nil
	}
	b.reported, b.hasReported = b.pin, true
	pin := b.pin
	return &pin
}

// Reasons of an answer that cannot continue.
const (
	reasonNoEqual       = "no_equal_worker"
	reasonPromptChanged = "prompt_changed"
	reasonTokenizerDied = "tokenizer_died"
)

// tried are the tokenizers that have a prompt, by node, the last one at the end.
type tried struct {
	nodes  []string
	probes map[string]uint64 // by node: number of the probe that was sent to it with the prompt, the first time
	times  int               // that it was sent
	deaths int               // of nodes that had it
}

// mostDeaths is how many tokenizers a prompt may outlive: the second death is hardly a
// coincidence, and the next tokenizer would be the third.
const mostDeaths = 2

func (a *tried) add(node string, probe uint64) {
	a.times++
	a.nodes = append(slices.DeleteFunc(a.nodes, func(n string) bool { return n == node }), node)
	if a.probes == nil {
		a.probes = make(map[string]uint64)
	}
	if _, had := a.probes[node]; !had {
		a.probes[node] = probe
	}
}

// gone forgets the nodes that have gone, and says whether the last one is still
// there. A node that said goodbye did not die of the prompt, nor did one that was
// dead before the prompt reached it: died says whether a node ended after a probe.
func (a *tried) gone(alive func(node string) bool, died func(node string, probe uint64) bool) (last bool, err error) {
	if n := len(a.nodes); n > 0 {
		last = alive(a.nodes[n-1])
	}
	where := ""
	a.nodes = slices.DeleteFunc(a.nodes, func(node string) bool {
		if alive(node) {
			return false
		}
		if died(node, a.probes[node]) {
			a.deaths++
			where = node
		}
		return true
	})
	if where != "" && a.deaths >= mostDeaths {
		return last, &api.Error{Code: api.CodeUnavailable, Reason: reasonTokenizerDied, Message: fmt.Sprintf(
			"%d tokenizers died while they had the prompt, the last at %s: it is not sent to another one", a.deaths, where)}
	}
	return last, nil
}
