package family

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// fields reads the members of a JSON object and keeps the first fault. null
// counts as absent, as in Python's configurations. A member may have several
// names; the first that is present is read, the first of all is named in
// faults.
type fields struct {
	file    string
	prefix  string // of the names in faults, "rope_scaling."
	members map[string]json.RawMessage
	alias   map[string]string // whole names in faults, where the file has others
	tensors describer         // of a GGUF file; nil: of none
	form    *ggufForm         // of that file
	kind    string            // general.architecture of that file
	err     error
}

// readFields reads the JSON object in a file.
func readFields(path string) (*fields, error) {
	raw, err := weights.ReadText(path)
	if err != nil {
		return nil, err
	}
	return parseFields(path, raw)
}

func parseFields(path string, raw []byte) (*fields, error) {
	f := &fields{file: path, alias: map[string]string{}}
	if err := json.Unmarshal(weights.PythonJSON(raw), &f.members); err != nil {
		return nil, &weights.FormatError{File: path, Found: weights.JSONFault(err), Expected: "a JSON object"}
	}
	return f, nil
}

// fault keeps the first fault: name, what was found, what was expected.
func (f *fields) fault(name, found, expected string) {
	if f.err == nil {
		name = f.prefix + name
		if own, ok := f.alias[name]; ok {
			name = own
		}
		f.err = &weights.FormatError{File: f.file, Name: name, Found: found, Expected: expected}
	}
}

// get returns the first of the names that is present and not null.
func (f *fields) get(names ...string) (string, json.RawMessage) {
	for _, n := range names {
		if raw, ok := f.members[n]; ok && string(raw) != "null" {
			return n, raw
		}
	}
	return names[0], nil
}

func (f *fields) has(name string) bool {
	_, raw := f.get(name)
	return raw != nil
}

// size is a required integer in 1..limit.
func (f *fields) size(limit int, names ...string) int {
	if name, raw := f.get(names...); raw == nil {
		f.fault(name, "nothing", fmt.Sprintf("an integer in 1..%d", limit))
		return 0
	}
	return f.integer(0, 1, limit, names...)
}

// integer is an integer in low..high, or missing when it is absent.
func (f *fields) integer(missing, low, high int, names ...string) int {
	name, raw := f.get(names...)
	if raw == nil {
		return missing
	}
	v, err := parseInteger(raw)
	if err != nil || v < int64(low) || v > int64(high) {
		f.fault(name, excerpt(raw), fmt.Sprintf("an integer in %d..%d", low, high))
		return missing
	}
	return int(v)
}

// parseInteger also takes an integral 4096.0, as some tools write it.
func parseInteger(raw json.RawMessage) (int64, error) {
	if v, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return v, nil
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || v != math.Trunc(v) || math.Abs(v) > 1<<53 {
		return 0, strconv.ErrSyntax
	}
	return int64(v), nil
}

// number is a number in low..high, or missing when it is absent.
func (f *fields) number(missing, low, high float64, names ...string) float64 {
	name, raw := f.get(names...)
	if raw == nil {
		return missing
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || v < low || v > high {
		f.fault(name, excerpt(raw), fmt.Sprintf("a number in %g..%g", low, high))
		return missing
	}
	return v
}

func (f *fields) flag(missing bool, name string) bool {
	_, raw := f.get(name)
	switch string(raw) {
	case "":
		return missing
	case "true":
		return true
	case "false":
		return false
	}
	f.fault(name, excerpt(raw), "true or false")
	return missing
}

// without refuses a flag that is set.
func (f *fields) without(name string) {
	if f.flag(false, name) {
		f.fault(name, "true", "false")
	}
}

// must refuse a flag that is not set, where it is there.
func (f *fields) must(name string) {
	if !f.flag(true, name) {
		f.fault(name, "false", "true")
	}
}

// only refuses another text than the one that is served, which is the default too.
func (f *fields) only(name, served string) {
	if found := f.text(served, name); found != served {
		f.fault(name, fmt.Sprintf("%.40q", found), served)
	}
}

func (f *fields) text(missing string, names ...string) string {
	name, raw := f.get(names...)
	if raw == nil {
		return missing
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		f.fault(name, excerpt(raw), "a string")
		return missing
	}
	return s
}

func (f *fields) texts(name string) []string { return list[string](f, name, "a list of strings") }

// integers is a list of integers; nil when it is absent.
func (f *fields) integers(name string) []int { return list[int](f, name, "a list of integers") }

func list[T any](f *fields, name, expected string) (all []T) {
	_, raw := f.get(name)
	if raw != nil && json.Unmarshal(raw, &all) != nil {
		f.fault(name, excerpt(raw), expected)
		return nil
	}
	return all
}

// bits is a list of 0 and 1, of n or more, whose first n are returned; nil when it is absent.
func (f *fields) bits(name string, n int) []bool {
	_, raw := f.get(name)
	if raw == nil {
		return nil
	}
	var list []int
	if json.Unmarshal(raw, &list) != nil || len(list) < n || slices.ContainsFunc(list, func(v int) bool { return v != 0 && v != 1 }) {
		f.fault(name, excerpt(raw), fmt.Sprintf("a list of 0 and 1, one for each of %d layers", n))
		return nil
	}
	bits := make([]bool, n)
	for i := range bits {
		bits[i] = list[i] == 1
	}
	return bits
}

// ids is a token id or a list of them. A token may also be there as its text, which only the tokenizer knows: it is left out.
func (f *fields) ids(name string) []int32 {
	_, raw := f.get(name)
	if raw == nil {
		return nil
	}
	list := []any{nil}
	if json.Unmarshal(raw, &list) != nil {
		list = []any{nil}
		_ = json.Unmarshal(raw, &list[0]) // a member is valid JSON
	}
	var ids []int32
	for _, v := range list {
		switch v := v.(type) {
		case string:
			continue
		case float64:
			if v == math.Trunc(v) && v >= 0 && v < maxVocab {
				ids = append(ids, int32(v))
				continue
			}
		}
		f.fault(name, excerpt(raw), fmt.Sprintf("a token id in 0..%d or a list of them", maxVocab-1))
		return nil
	}
	return ids
}

// object is a member that is an object itself; empty when it is absent. Its
// fault becomes the parent's by adopt.
func (f *fields) object(name string) *fields {
	sub := &fields{file: f.file, prefix: f.prefix + name + ".", alias: f.alias}
	_, raw := f.get(name)
	if raw != nil && json.Unmarshal(raw, &sub.members) != nil {
		f.fault(name, excerpt(raw), "an object")
	}
	return sub
}

// rename gives members the names that most classes have. A class with names of its own does not read the others.
func (f *fields) rename(names map[string]string) {
	for _, name := range names {
		delete(f.members, name)
	}
	f.prefer(names)
}

// prefer is rename for a class that reads the others too, where its own are absent.
func (f *fields) prefer(names map[string]string) {
	for own, name := range names {
		if _, raw := f.get(own); raw != nil {
			f.members[name], f.alias[name] = raw, cmp.Or(f.alias[own], own)
		}
	}
}

// defaults sets the members that are absent.
func (f *fields) defaults(values map[string]any) {
	for name, value := range values {
		if !f.has(name) {
			f.set(name, value)
		}
	}
}

// missing sets the members that are not there. One of null stays: it says that there is none.
func (f *fields) missing(values map[string]any) {
	for name, value := range values {
		if _, ok := f.members[name]; !ok {
			f.set(name, value)
		}
	}
}

// liftText copies the members of text_config, which a model with images has for its text model, to its side, where there is none of the
// name.
func (f *fields) liftText() {
	sub := f.object("text_config")
	for member, raw := range sub.members {
		if !f.has(member) {
			f.members[member], f.alias[member] = raw, sub.prefix+member
		}
	}
}

func (f *fields) adopt(sub *fields) {
	if f.err == nil {
		f.err = sub.err
	}
}

// excerpt keeps a message on one short line.
func excerpt(raw json.RawMessage) string {
	s := strings.Join(strings.Fields(string(raw)), " ")
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}

func configPath(dir string) string { return filepath.Join(dir, "config.json") }
