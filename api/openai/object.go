package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/jsonbody"
)

// object reads the fields of a JSON object by their exact names. null counts as absent. err keeps the
// first error, so a caller reads all fields and checks err once.
type object struct {
	path   string // "" at the top, "messages[3]." inside
	fields map[string]json.RawMessage
	err    *api.Error
}

// parse checks that a body is valid UTF-8 and one JSON object within jsonbody.MaxDepth, and opens it.
func parse(text []byte) (*object, error) {
	o := &object{}
	if err := jsonbody.Unmarshal(text, &o.fields); err != nil {
		return nil, err
	}
	return o, nil
}

// get returns a field's raw value, or false if it is absent or null.
func (o *object) get(name string) (json.RawMessage, bool) {
	raw, ok := o.fields[name]
	if !ok || string(raw) == "null" {
		return nil, false
	}
	return raw, true
}

func (o *object) fail(name, format string, args ...any) {
	if o.err == nil {
		param := o.path + name
		o.err = api.Invalid(param, "%s: %s", param, fmt.Sprintf(format, args...))
	}
}

func (o *object) expected(name, what string, raw []byte) {
	o.fail(name, "expected %s, found %s", what, jsonbody.Snippet(raw))
}

func (o *object) str(name string, dst *string) {
	if raw, ok := o.get(name); ok && !decodeString(raw, dst) {
		o.expected(name, "a string", raw)
	}
}

// decodeString sets dst to a JSON value that parse has checked, and returns false if that is not a string.
func decodeString(raw []byte, dst *string) bool {
	if raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 { // encoding/json would check and scan it again
		*dst = string(raw[1 : len(raw)-1])
		return true
	}
	return json.Unmarshal(raw, dst) == nil
}

func (o *object) boolean(name string, dst *bool) {
	raw, ok := o.get(name)
	switch {
	case !ok:
	case string(raw) == "true":
		*dst = true
	case string(raw) == "false":
		*dst = false
	default:
		o.expected(name, "true or false", raw)
	}
}

// integer sets dst to the field's value if it is present and from lo to hi.
func (o *object) integer(name string, lo, hi int64, dst *int64) bool {
	raw, ok := o.get(name)
	if !ok {
		return false
	}
	v, ok := jsonbody.ParseInt(raw)
	if !ok || v < lo || v > hi {
		o.expected(name, fmt.Sprintf("an integer from %d to %d", lo, hi), raw)
		return false
	}
	*dst = v
	return true
}

func (o *object) int(name string, lo, hi int64, dst *int) {
	var v int64
	if o.integer(name, lo, hi, &v) {
		*dst = int(v)
	}
}

// number sets dst to the field's value if it is there and lo <= value <= hi,
// or lo < value when open.
func (o *object) number(name string, lo, hi float64, open bool, dst *float32) {
	raw, ok := o.get(name)
	if !ok {
		return
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || v < lo || v > hi || open && float64(float32(v)) == lo {
		what := fmt.Sprintf("a number from %g to %g", lo, hi)
		if open {
			what = fmt.Sprintf("a number above %g and up to %g", lo, hi)
		}
		o.expected(name, what, raw)
		return
	}
	*dst = float32(v)
}

// list returns the elements of an array field, or false if it is absent or not an array.
func (o *object) list(name string, most int) ([]json.RawMessage, bool) {
	raw, ok := o.get(name)
	if !ok {
		return nil, false
	}
	items, count, ok := jsonbody.Elements(raw, most)
	switch {
	case !ok:
		o.expected(name, "a list", raw)
	case count > most:
		o.fail(name, "expected at most %d entries, found %d", most, count)
	default:
		return items, true
	}
	return nil, false
}

// tokens reads a list of token ids.
func (o *object) tokens(name string, most int) ([]int32, bool) {
	raw, ok := o.get(name)
	if !ok {
		return nil, false
	}
	n, good := min(bytes.Count(raw, []byte{','})+1, most), true
	ids := make([]int32, 0, n) // not appended to a growing list: there may be millions
	count := 0
	ok = jsonbody.Walk(raw, func(item json.RawMessage) bool {
		if count++; count > most {
			return true
		}
		v, integer := jsonbody.ParseInt(item)
		if good = integer && v >= 0 && v <= math.MaxInt32; !good {
			o.expected(fmt.Sprintf("%s[%d]", name, count-1), "a token id (an integer from 0)", item)
			return false
		}
		ids = append(ids, int32(v))
		return true
	})
	switch {
	case !ok:
		o.expected(name, "a list", raw)
	case good && count > most:
		o.fail(name, "expected at most %d entries, found %d", most, count)
	case good:
		return ids, true
	}
	return nil, false
}

// child opens an object field. It returns nil if the field is absent or not an object.
func (o *object) child(name string) *object {
	raw, ok := o.get(name)
	if !ok {
		return nil
	}
	return o.open(name, raw)
}

// open opens a nested value as an object. It sets err and returns nil if it is not one.
func (o *object) open(name string, raw json.RawMessage) *object {
	c := &object{path: o.path + name + "."}
	if json.Unmarshal(raw, &c.fields) != nil || c.fields == nil {
		o.expected(name, "an object", raw)
		return nil
	}
	return c
}

// adopt copies the error of a child, unless o has one.
func (o *object) adopt(c *object) {
	if o.err == nil && c != nil {
		o.err = c.err
	}
}

// result returns err as an error, nil if there is none.
func (o *object) result() error {
	if o.err == nil {
		return nil
	}
	return o.err
}

// bound refuses a field with more than jsonbody.MaxValues values.
func (o *object) bound(name string) {
	if raw, ok := o.get(name); ok {
		if n := jsonbody.Values(raw); n > jsonbody.MaxValues {
			o.fail(name, "expected at most %d values, found up to %d", jsonbody.MaxValues, n)
			delete(o.fields, name) // nobody decodes it
		}
	}
}
