package jsonbody

import (
	"bytes"
	"encoding/json"

	"github.com/millrace/millrace/api"
)

// The limits of what a body may hold. A value of a few bytes takes up to a few hundred when it is decoded, so a body of many small ones
// would take a multiple of its size that grows without bound. Numbers are not among them: lists of token ids are decoded without a copy.
const (
	maxContainers = 50_000  // objects and lists
	maxStrings    = 400_000 // keys among them
	maxScalars    = 20_000  // in lists of a body that is decoded into structs
)

// MaxValues is the limit of a field that is decoded into values, numbers among them.
const MaxValues = 200_000

// contents counts what a JSON text holds. It needs no valid text.
type contents struct {
	containers, strings, commas int
	scalars                     int // elements of lists that are strings, numbers, true, false or null
}

func contentsOf(text []byte) (c contents) {
	var lists uint64 // a bit for each open container, the innermost last: 1 is a list. Check refuses deeper ones
	inString, begins := false, false
	scalar := func() {
		if begins = false; lists&1 == 1 {
			c.scalars++
		}
	}
	for i := 0; i < len(text); i++ {
		switch b := text[i]; {
		case inString && b == '\\':
			i++
		case b == '"':
			if inString = !inString; inString {
				c.strings++
				scalar()
			}
		case inString || isSpace(b):
		case b == '{':
			lists, begins = lists<<1, false
			c.containers++
		case b == '[':
			lists, begins = lists<<1|1, true
			c.containers++
		case b == '}' || b == ']':
			lists >>= 1
		case b == ',':
			c.commas++
			begins = true
		case begins:
			scalar()
		}
	}
	return c
}

// check refuses a body that would take too much memory.
func (c contents) check() error {
	switch {
	case c.containers > maxContainers:
		return api.Invalid("", "found %d objects and lists in the body, expected at most %d", c.containers, maxContainers)
	case c.strings > maxStrings:
		return api.Invalid("", "found %d keys and strings in the body, expected at most %d", c.strings, maxStrings)
	}
	return nil
}

// checkLists refuses a body whose lists would take too much memory as lists of structs.
func (c contents) checkLists() error {
	if c.scalars > maxScalars {
		return api.Invalid("", "found %d strings and numbers in lists of the body, expected at most %d", c.scalars, maxScalars)
	}
	return nil
}

// Values returns how many values a text has, or more.
func Values(text []byte) int {
	c := contentsOf(text)
	return c.containers + c.commas + 1
}

// Walk calls visit with each element of a valid JSON list until it returns false. The elements are parts of raw. It returns false if raw is
// no list.
func Walk(raw []byte, visit func(item json.RawMessage) bool) bool {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || raw[0] != '[' {
		return false
	}
	for i := 1; ; i++ {
		for isSpace(raw[i]) {
			i++
		}
		if raw[i] == ']' { // of an empty list
			return true
		}
		end := valueEnd(raw, i)
		if !visit(raw[i:end:end]) {
			return true
		}
		for i = end; isSpace(raw[i]); i++ {
		}
		if raw[i] == ']' {
			return true
		}
	}
}

func isSpace(b byte) bool { return b == ' ' || b == '\t' || b == '\n' || b == '\r' }

// valueEnd returns where the value that begins at i ends.
func valueEnd(raw []byte, i int) int {
	depth, inString := 0, false
	for ; i < len(raw); i++ {
		switch b := raw[i]; {
		case inString && b == '\\':
			i++
		case b == '"':
			inString = !inString
		case inString:
		case b == '{' || b == '[':
			depth++
		case (b == '}' || b == ']' || b == ',' || isSpace(b)) && depth == 0:
			return i
		case b == '}' || b == ']':
			depth--
		}
	}
	return i
}

// Elements returns the elements of a list, up to the limit most, and how many it has. ok is false if raw is no list.
func Elements(raw []byte, most int) (items []json.RawMessage, count int, ok bool) {
	ok = Walk(raw, func(item json.RawMessage) bool {
		if count++; count <= most {
			items = append(items, item)
		}
		return true
	})
	return items, count, ok
}
