package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// node is a JSON value. Its keys keep their order, and its numbers their digits.
type node struct {
	kind    kind
	members []member       // of an object
	items   []*node        // of a list
	text    string         // JSON of any other value
	places  map[string]int // of many members, by their names; nil, or of another length: not made yet
}

// manyMembers is the number of members from which an object finds them by a table.
const manyMembers = 16

type member struct {
	name  string
	value *node
}

type kind uint8

const (
	scalar kind = iota // a string, a number, true, false or null
	object
	list
)

// always and never are the schemas that allow everything and nothing. They are read only.
func always() *node { return &node{text: "true"} }
func never() *node  { return &node{text: "false"} }

func (n *node) isAlways() bool { return n.text == "true" || n.kind == object && len(n.members) == 0 }
func (n *node) isNever() bool  { return n.text == "false" }

// parse reads one JSON value.
func parse(source string) (*node, error) {
	d := json.NewDecoder(strings.NewReader(source))
	d.UseNumber()
	n, err := read(d)
	if err != nil {
		return nil, err
	}
	if d.More() {
		return nil, errors.New("found more than one value")
	}
	return n, nil
}

func read(d *json.Decoder) (*node, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		n, places := &node{kind: object}, make(map[string]int)
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			name := key.(string) //nolint:forcetypeassert // keys are strings
			value, err := read(d)
			if err != nil {
				return nil, err
			}
			if at, known := places[name]; known { // the last one counts
				n.members[at].value = value
				continue
			}
			places[name] = len(n.members)
			n.members = append(n.members, member{name, value})
		}
		_, err := d.Token()
		return n, err
	case json.Delim('['):
		n := &node{kind: list}
		for d.More() {
			item, err := read(d)
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, item)
		}
		_, err := d.Token()
		return n, err
	}
	return valueOf(token), nil
}

// valueOf returns the node of a string, a number, a list of strings, or another value without keys.
func valueOf(value any) *node {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil { // such values have a JSON form
		return always()
	}
	return &node{text: strings.TrimSuffix(b.String(), "\n")}
}

// objectOf returns an object with one member.
func objectOf(name string, value *node) *node {
	return &node{kind: object, members: []member{{name, value}}}
}

func listOf(items ...*node) *node { return &node{kind: list, items: items} }

// get returns a member of an object, nil for none.
func (n *node) get(name string) *node {
	if i := n.at(name); i >= 0 {
		return n.members[i].value
	}
	return nil
}

// at returns the place of a member, -1 for none.
func (n *node) at(name string) int {
	if len(n.members) < manyMembers {
		return slices.IndexFunc(n.members, func(m member) bool { return m.name == name })
	}
	if len(n.places) != len(n.members) {
		n.places = make(map[string]int, len(n.members))
		for i := range n.members {
			n.places[n.members[i].name] = i
		}
	}
	if i, known := n.places[name]; known {
		return i
	}
	return -1
}

// set adds a member, or replaces the one of this name.
func (n *node) set(name string, value *node) {
	if i := n.at(name); i >= 0 {
		n.members[i].value = value
		return
	}
	if n.members = append(n.members, member{name, value}); len(n.places) == len(n.members)-1 && n.places != nil {
		n.places[name] = len(n.members) - 1
	}
}

// str returns the text of a string.
func (n *node) str() (text string, ok bool) {
	if n == nil || n.kind != scalar || !strings.HasPrefix(n.text, `"`) {
		return "", false
	}
	return text, json.Unmarshal([]byte(n.text), &text) == nil
}

// number returns a number, as close as a float64 is.
func (n *node) number() (value float64, ok bool) {
	if n == nil || n.kind != scalar {
		return 0, false
	}
	return value, json.Unmarshal([]byte(n.text), &value) == nil && n.text != "null"
}

// String returns the JSON of the value.
func (n *node) String() string {
	var b strings.Builder
	n.write(&b)
	return b.String()
}

func (n *node) write(b *strings.Builder) {
	switch n.kind {
	case object:
		b.WriteByte('{')
		for i := range n.members {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(valueOf(n.members[i].name).text)
			b.WriteByte(':')
			n.members[i].value.write(b)
		}
		b.WriteByte('}')
	case list:
		b.WriteByte('[')
		for i, item := range n.items {
			if i > 0 {
				b.WriteByte(',')
			}
			item.write(b)
		}
		b.WriteByte(']')
	case scalar:
		b.WriteString(n.text)
	}
}

// jsonType is the type of the value, as JSON Schema names it.
func (n *node) jsonType() string {
	switch n.kind {
	case object:
		return "object"
	case list:
		return "array"
	case scalar:
	}
	switch n.text[0] {
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "number"
}
