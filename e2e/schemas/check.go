package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/tokenizer"
)

// checker checks schemas over one vocabulary.
type checker struct {
	tok        *tokenizer.Tokenizer
	grammars   grammar.Engine
	o          *options
	shortening []bool // by token: it has a character that closes a string, a list or an object
	end        int32
}

func newChecker(tok *tokenizer.Tokenizer, o *options) (*checker, error) {
	e, err := tok.Grammars()
	if err != nil {
		return nil, err
	}
	c := &checker{tok: tok, grammars: e, o: o, end: e.Ends()[0], shortening: make([]bool, tok.VocabSize())}
	for id := range c.shortening {
		c.shortening[id] = bytes.ContainsAny(tok.TokenBytes(int32(id)), "\"}]")
	}
	return c, nil
}

// result is what became of a schema.
type result struct {
	refused  string // the reason; "": it compiles
	misses   []string
	answers  int
	ended    int // of answers
	invalid  int // of ended
	valid    int // instances
	accepted int // of valid
	wrong    int // instances that are not valid
	leaked   int // of wrong, those that are accepted
	times    []int32
}

func (r *result) add(o *result) {
	r.answers, r.ended, r.invalid = r.answers+o.answers, r.ended+o.ended, r.invalid+o.invalid
	r.valid, r.accepted = r.valid+o.valid, r.accepted+o.accepted
	r.wrong, r.leaked = r.wrong+o.wrong, r.leaked+o.leaked
	r.times = append(r.times, o.times...)
}

func (r *result) miss(format string, args ...any) {
	r.misses = append(r.misses, fmt.Sprintf(format, args...))
}

// check compiles a schema, draws answers and feeds its instances.
func (c *checker) check(t *testCase, rng *rand.Rand) (r result) {
	spec := grammar.Spec{Kind: grammar.JSONSchema, Source: string(t.Schema)}
	kind, source, err := spec.Program()
	if err != nil {
		r.refused = err.Error()
		return r
	}
	p, err := c.grammars.Compile(kind, source)
	if err != nil {
		r.refused = err.Error()
		return r
	}
	validator, err := validatorOf(t.Schema)
	if err != nil {
		r.miss("it compiles, and the other library refuses it: %v", err)
		return r
	}
	for range c.o.answers {
		c.draw(p, validator, rng, &r)
	}
	for i := range t.Tests {
		c.feed(p, &t.Tests[i], &r)
	}
	return r
}

// base is the address of a schema, against which the other library resolves its names.
const base = "https://schema.invalid/schema.json"

func validatorOf(schema []byte) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(base, doc); err != nil {
		return nil, err
	}
	return compiler.Compile(base)
}

// draw draws an answer: any allowed tokens, and more often those that make it shorter.
func (c *checker) draw(p grammar.Program, validator *jsonschema.Schema, rng *rand.Rand, r *result) {
	a, err := p.Start()
	if err != nil {
		r.miss("%v", err)
		return
	}
	defer a.Close()
	r.answers++
	var text []byte
	mask := grammar.NewMask(c.tok.VocabSize())
	for range c.o.tokens {
		begin := time.Now()
		if err := a.Mask(mask); err != nil {
			r.miss("mask after %q: %v", tail(text), err)
			return
		}
		r.times = append(r.times, int32(time.Since(begin).Microseconds()))
		token := c.pick(mask, rng)
		if token == c.end {
			r.ended++
			c.validate(validator, text, r)
			return
		}
		ok, _, err := a.Advance(token)
		if !ok || err != nil {
			r.miss("token %q of the mask after %q: taken %v, %v", c.tok.TokenText(token), tail(text), ok, err)
			return
		}
		text = append(text, c.tok.TokenBytes(token)...)
	}
}

// pick draws a token of a mask.
func (c *checker) pick(mask grammar.Mask, rng *rand.Rand) int32 {
	if mask.Allows(c.end) && rng.IntN(2) == 0 {
		return c.end
	}
	short := rng.IntN(2) == 0
	first, other := rng.IntN(c.tok.VocabSize()), c.end
	for i := range c.tok.VocabSize() {
		id := int32((first + i) % c.tok.VocabSize())
		if !mask.Allows(id) || slices.Contains(c.grammars.Ends(), id) {
			continue
		}
		if !short || c.shortening[id] {
			return id
		}
		if other == c.end {
			other = id
		}
	}
	return other
}

func (c *checker) validate(validator *jsonschema.Schema, text []byte, r *result) {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err == nil {
		err = validator.Validate(value)
	}
	if err != nil {
		r.invalid++
		r.miss("the answer %q is not valid: %s", tail(text), oneLine(err))
	}
}

// feed gives an instance to the grammar, token by token.
func (c *checker) feed(p grammar.Program, t *instance, r *result) {
	text, err := plainJSON(t.Data)
	if err != nil {
		r.miss("%v", err)
		return
	}
	accepted := c.accepts(p, text, r)
	switch {
	case t.Valid && accepted:
		r.valid, r.accepted = r.valid+1, r.accepted+1
	case t.Valid:
		r.valid++
		r.miss("a valid instance is refused: %s", tail([]byte(text)))
	case accepted:
		r.wrong, r.leaked = r.wrong+1, r.leaked+1
		r.miss("an instance that is not valid is accepted: %s", tail([]byte(text)))
	default:
		r.wrong++
	}
}

func (c *checker) accepts(p grammar.Program, text string, r *result) bool {
	ids, err := c.tok.Encode(text, false)
	if err != nil {
		r.miss("%v", err)
		return false
	}
	a, err := p.Start()
	if err != nil {
		r.miss("%v", err)
		return false
	}
	defer a.Close()
	for _, id := range ids {
		ok, _, err := a.Advance(id)
		if err != nil {
			r.miss("%v", err)
		}
		if !ok || err != nil {
			return false
		}
	}
	mask := grammar.NewMask(c.tok.VocabSize())
	if err := a.Mask(mask); err != nil {
		r.miss("%v", err)
		return false
	}
	return mask.Allows(c.end)
}

// plainJSON writes a value without spaces, in the order of its keys, and with its characters as they are.
func plainJSON(raw json.RawMessage) (string, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var b strings.Builder
	err := writeValue(d, &b)
	return b.String(), err
}

func writeValue(d *json.Decoder, b *strings.Builder) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	switch v := token.(type) {
	case json.Delim:
		return writeMany(d, b, v)
	case json.Number:
		b.WriteString(v.String())
	default:
		var plain strings.Builder
		e := json.NewEncoder(&plain)
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			return err
		}
		text := strings.TrimSuffix(plain.String(), "\n")
		b.WriteString(strings.NewReplacer(`\u2028`, "\u2028", `\u2029`, "\u2029").Replace(text))
	}
	return nil
}

// writeMany writes the rest of an object or a list.
func writeMany(d *json.Decoder, b *strings.Builder, open json.Delim) error {
	b.WriteString(open.String())
	for i := 0; d.More(); i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		if open == '{' {
			if err := writeValue(d, b); err != nil {
				return err
			}
			b.WriteByte(':')
		}
		if err := writeValue(d, b); err != nil {
			return err
		}
	}
	end, err := d.Token()
	if err == nil {
		fmt.Fprint(b, end)
	}
	return err
}

func tail(text []byte) string {
	const most = 160
	if len(text) > most {
		return "..." + string(text[len(text)-most:])
	}
	return string(text)
}

func oneLine(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	return text[:min(len(text), 200)]
}
