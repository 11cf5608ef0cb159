package openai

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/jsonbody"
	"github.com/millrace/millrace/api/proof"
)

// proof reads "proof" into a call that has its requests. true requests the proof of the answer. The proof of an earlier answer requests
// that answer: from workers of the same digests, with the seed that the server drew and the clock of the chat template.
func (o *object) proof(c *call.Call) {
	raw, ok := o.get("proof")
	switch {
	case !ok || string(raw) == "false":
		return
	case string(raw) == "true":
	case raw[0] != '{':
		o.expected("proof", "true, false or the proof of an answer", raw)
	default:
		p := o.open("proof", raw)
		p.earlier(c, o)
		o.adopt(p)
	}
	c.Proof, c.TokenIDs = true, true
}

// earlier makes a call the one of an earlier answer, whose proof o is. A seed of the request itself stays.
func (o *object) earlier(c *call.Call, request *object) {
	version, created, seed := int64(0), int64(0), ""
	o.integer("version", proof.Version, proof.Version, &version)
	const year10000 = 253402300800
	o.integer("created", 0, year10000-1, &created)
	if settings := o.child("settings"); settings != nil {
		settings.str("seed", &seed)
		o.adopt(settings)
	}
	drawn, err := strconv.ParseUint(seed, 10, 64)
	if seed != "" && err != nil {
		o.fail("settings.seed", "expected an integer from 0 to %d as a string, found %q", uint64(math.MaxUint64),
			jsonbody.Snippet([]byte(seed)))
	}
	prompts, _ := o.list("prompts", maxPrompts)
	if len(prompts) != len(c.Requests) {
		o.fail("prompts", "expected %d, one for each prompt of the request, found %d", len(c.Requests), len(prompts))
	}
	_, own := request.get("seed")
	for i, raw := range prompts[:min(len(prompts), len(c.Requests))] {
		r := c.Requests[i]
		if seed != "" && !own {
			r.Sampling.Seed = drawn
		}
		if created > 0 {
			r.Clock = time.Unix(created, 0)
		}
		r.Equal = o.pin(fmt.Sprintf("prompts[%d]", i), raw)
	}
}

// pin reads the digests of a prompt's workers.
func (o *object) pin(name string, raw []byte) *api.Pin {
	p := o.open(name, raw)
	if p == nil {
		return nil
	}
	var pin api.Pin
	for _, f := range []struct {
		name string
		to   *string
	}{{"numerics", &pin.Numerics}, {"text", &pin.Text}} {
		if p.str(f.name, f.to); *f.to == "" {
			p.fail(f.name, "expected a digest, found none")
		}
	}
	o.adopt(p)
	return &pin
}
