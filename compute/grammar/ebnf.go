package grammar

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// isEBNF reports whether a grammar has the rules of EBNF as llama.cpp and xgrammar write it, name ::= ...
func isEBNF(source string) bool {
	for line := range strings.Lines(source) {
		line, _, _ = strings.Cut(line, "#")
		if _, _, ok := strings.Cut(line, "::="); ok {
			return true
		}
	}
	return false
}

// The elements of a grammar. One of text, class, rule and group is set.
type (
	alternatives [][]element
	element      struct {
		text  *string
		class string // of a regular expression: [a-z], or (?s:.)
		rule  string
		group alternatives
		least int
		most  int // -1: any number
	}
)

// larkOfEBNF writes an EBNF grammar as Lark. Rules that do not contain themselves become terminals, which the engine
// matches as regular expressions; the rest stay rules.
func larkOfEBNF(source string) (string, error) {
	p := ebnf{rest: source, line: 1}
	rules, order, err := p.rules()
	if err != nil {
		return "", fmt.Errorf("%w: line %d: %w", ErrSpec, p.line, err)
	}
	if _, ok := rules["root"]; !ok {
		return "", fmt.Errorf("%w: found no rule root, expected one", ErrSpec)
	}
	w := larkWriter{rules: rules, names: make(map[string]string)}
	regular := regularRules(rules)
	for i, name := range order {
		if regular[name] {
			w.names[name] = fmt.Sprintf("T%d", i)
		} else {
			w.names[name] = fmt.Sprintf("r%d", i)
		}
	}
	return w.write(order)
}

// regularRules finds the rules that do not lead to one that contains itself: first those without references, then those that refer
// to found ones only (Kahn 1962).
func regularRules(rules map[string]alternatives) map[string]bool {
	open, users := make(map[string]int), make(map[string][]string)
	var found []string
	for name, body := range rules {
		refs := make(map[string]bool)
		references(body, refs)
		for other := range refs {
			users[other] = append(users[other], name)
		}
		if open[name] = len(refs); len(refs) == 0 {
			found = append(found, name)
		}
	}
	regular := make(map[string]bool)
	for len(found) > 0 {
		name := found[len(found)-1]
		found, regular[name] = found[:len(found)-1], true
		for _, user := range users[name] {
			if open[user]--; open[user] == 0 {
				found = append(found, user)
			}
		}
	}
	return regular
}

func references(list alternatives, refs map[string]bool) {
	for _, sequence := range list {
		for _, e := range sequence {
			if e.rule != "" {
				refs[e.rule] = true
			}
			references(e.group, refs)
		}
	}
}

type larkWriter struct {
	rules map[string]alternatives
	names map[string]string // as the engine knows them
}

func (w *larkWriter) write(order []string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "start: %s\n", w.names["root"])
	for _, name := range order {
		body, err := w.alternatives(w.rules[name])
		if err != nil {
			return "", fmt.Errorf("%w: rule %s: %w", ErrSpec, name, err)
		}
		fmt.Fprintf(&b, "%s: %s\n", w.names[name], body)
	}
	return b.String(), nil
}

func (w *larkWriter) alternatives(list alternatives) (string, error) {
	parts := make([]string, len(list))
	for i, sequence := range list {
		items := make([]string, len(sequence))
		for k := range sequence {
			item, err := w.element(&sequence[k])
			if err != nil {
				return "", err
			}
			items[k] = item
		}
		if parts[i] = strings.Join(items, " "); len(items) == 0 {
			parts[i] = `""`
		}
	}
	return strings.Join(parts, " | "), nil
}

func (w *larkWriter) element(e *element) (s string, err error) {
	switch {
	case e.text != nil:
		s = literal(*e.text)
	case e.class != "":
		s = "/" + e.class + "/"
	case e.rule != "":
		if s = w.names[e.rule]; s == "" {
			return "", fmt.Errorf("found %s, which is no rule", e.rule)
		}
	default:
		if s, err = w.alternatives(e.group); err != nil {
			return "", err
		}
		s = "(" + s + ")"
	}
	switch {
	case e.least == 1 && e.most == 1:
	case e.least == 0 && e.most == 1:
		s += "?"
	case e.least == 0 && e.most < 0:
		s += "*"
	case e.least == 1 && e.most < 0:
		s += "+"
	case e.most < 0:
		s += fmt.Sprintf("{%d,}", e.least)
	default:
		s += fmt.Sprintf("{%d,%d}", e.least, e.most)
	}
	return s, nil
}

// maxRepeat bounds the numbers of {m,n}.
const maxRepeat = 10_000

// maxNesting bounds the depth of parentheses.
const maxNesting = 64

// ebnf reads a grammar.
type ebnf struct {
	rest  string
	line  int
	depth int
}

// rules reads all rules and their order.
func (p *ebnf) rules() (map[string]alternatives, []string, error) {
	rules, order := make(map[string]alternatives), []string(nil)
	for p.space(); p.rest != ""; p.space() {
		name, ok := p.ruleStart()
		if !ok {
			return nil, nil, fmt.Errorf("found %s, expected a rule (name ::= ...)", p.found())
		}
		if _, twice := rules[name]; twice {
			return nil, nil, fmt.Errorf("found rule %s twice", name)
		}
		body, err := p.alternatives()
		if err != nil {
			return nil, nil, err
		}
		rules[name], order = body, append(order, name)
	}
	return rules, order, nil
}

// ruleStart reads "name ::=", if that is next.
func (p *ebnf) ruleStart() (string, bool) {
	before := *p
	name := p.name()
	p.space()
	if name == "" || !p.take("::=") {
		*p = before
		return "", false
	}
	return name, true
}

func (p *ebnf) alternatives() (list alternatives, err error) {
	for {
		sequence, err := p.sequence()
		if err != nil {
			return nil, err
		}
		list = append(list, sequence)
		if !p.take("|") {
			return list, nil
		}
	}
}

func (p *ebnf) sequence() (list []element, err error) {
	for p.space(); p.rest != ""; p.space() {
		before := *p
		if _, next := p.ruleStart(); next {
			*p = before
			return list, nil
		}
		e := element{least: 1, most: 1}
		switch c := p.rest[0]; c {
		case '|', ')':
			return list, nil
		case '"', '\'':
			text, err := p.quoted(c)
			if err != nil {
				return nil, err
			}
			e.text = &text
		case '[':
			if e.class, err = p.class(); err != nil {
				return nil, err
			}
		case '.':
			p.rest, e.class = p.rest[1:], `(?s:.)`
		case '(':
			if e.group, err = p.group(); err != nil {
				return nil, err
			}
		default:
			if e.rule = p.name(); e.rule == "" {
				return nil, fmt.Errorf("found %s, expected a rule, a string, a class or a group", p.found())
			}
		}
		if err := p.repeat(&e); err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}

func (p *ebnf) group() (alternatives, error) {
	p.take("(")
	if p.depth++; p.depth > maxNesting {
		return nil, fmt.Errorf("found groups nested more than %d deep", maxNesting)
	}
	list, err := p.alternatives()
	if err != nil {
		return nil, err
	}
	p.depth--
	if p.space(); !p.take(")") {
		return nil, fmt.Errorf("found %s, expected )", p.found())
	}
	return list, nil
}

func (p *ebnf) repeat(e *element) error {
	switch {
	case p.take("*"):
		e.least, e.most = 0, -1
	case p.take("+"):
		e.most = -1
	case p.take("?"):
		e.least = 0
	case p.take("{"):
		inner, after, ok := strings.Cut(p.rest, "}")
		if !ok {
			return fmt.Errorf("found %s, expected }", p.found())
		}
		p.rest = after
		low, high, two := strings.Cut(inner, ",")
		var err error
		if e.least, err = count(low); err != nil {
			return err
		}
		switch e.most = e.least; {
		case two && strings.TrimSpace(high) == "":
			e.most = -1
		case two:
			if e.most, err = count(high); err == nil && e.most < e.least {
				err = fmt.Errorf("found {%s}, expected the smaller number first", inner)
			}
		}
		return err
	}
	return nil
}

func count(text string) (int, error) {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 0 || n > maxRepeat {
		return 0, fmt.Errorf("found %.20q, expected a number up to %d", text, maxRepeat)
	}
	return n, nil
}

func (p *ebnf) quoted(quote byte) (string, error) {
	var b strings.Builder
	for p.rest = p.rest[1:]; ; {
		if p.rest != "" && p.rest[0] == quote {
			p.rest = p.rest[1:]
			return b.String(), nil
		}
		r, err := p.char()
		if err != nil {
			return "", err
		}
		b.WriteRune(r)
	}
}

// class reads [a-z] and [^"\\], and returns it as a class of regular expressions.
func (p *ebnf) class() (string, error) {
	var b strings.Builder
	b.WriteByte('[')
	if p.rest = p.rest[1:]; p.take("^") {
		b.WriteByte('^')
	}
	for empty := true; ; empty = false {
		if p.take("]") {
			if empty {
				return "", fmt.Errorf("found an empty class")
			}
			return b.String() + "]", nil
		}
		low, err := p.char()
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, `\x{%X}`, low)
		if len(p.rest) > 1 && p.rest[0] == '-' && p.rest[1] != ']' {
			p.rest = p.rest[1:]
			high, err := p.char()
			if err != nil {
				return "", err
			}
			if high < low {
				return "", fmt.Errorf("found the range %q-%q, expected the lower character first", low, high)
			}
			fmt.Fprintf(&b, `-\x{%X}`, high)
		}
	}
}

// char reads a character or an escape.
func (p *ebnf) char() (rune, error) {
	r, size := utf8.DecodeRuneInString(p.rest)
	if r == utf8.RuneError && size < 2 || r == '\n' {
		return 0, fmt.Errorf("found the end of the line, expected the end of a string or a class")
	}
	if p.rest = p.rest[size:]; r != '\\' {
		return r, nil
	}
	if p.rest == "" {
		return 0, fmt.Errorf("found the end after a backslash")
	}
	c := p.rest[0]
	p.rest = p.rest[1:]
	switch c {
	case 'n':
		return '\n', nil
	case 't':
		return '\t', nil
	case 'r':
		return '\r', nil
	case 'x':
		return p.hex(2)
	case 'u':
		return p.hex(4)
	case 'U':
		return p.hex(8)
	case '"', '\'', '\\', '[', ']', '-', '^', '/', '.':
		return rune(c), nil
	}
	return 0, fmt.Errorf("found the escape \\%c, expected one of n t r x u U, a quote, a bracket, - ^ / . or a backslash", c)
}

func (p *ebnf) hex(digits int) (rune, error) {
	if len(p.rest) < digits {
		return 0, fmt.Errorf("found %s, expected %d hexadecimal digits", p.found(), digits)
	}
	v, err := strconv.ParseUint(p.rest[:digits], 16, 32)
	if err != nil || v > unicode.MaxRune || v >= 0xD800 && v < 0xE000 {
		return 0, fmt.Errorf("found %.8q, expected a character in %d hexadecimal digits", p.rest[:digits], digits)
	}
	p.rest = p.rest[digits:]
	return rune(v), nil
}

func (p *ebnf) name() string {
	n := 0
	for n < len(p.rest) {
		c := p.rest[n]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (n == 0 || c != '-' && (c < '0' || c > '9')) {
			break
		}
		n++
	}
	name := p.rest[:n]
	p.rest = p.rest[n:]
	return name
}

func (p *ebnf) take(token string) bool {
	rest, ok := strings.CutPrefix(p.rest, token)
	if ok {
		p.rest = rest
	}
	return ok
}

// space skips white space and comments.
func (p *ebnf) space() {
	for p.rest != "" {
		switch p.rest[0] {
		case '\n':
			p.line++
		case ' ', '\t', '\r':
		case '#':
			_, after, _ := strings.Cut(p.rest, "\n")
			p.rest = "\n" + after
			continue
		default:
			return
		}
		p.rest = p.rest[1:]
	}
}

// found quotes the next characters, for an error.
func (p *ebnf) found() string {
	if p.rest == "" {
		return "the end"
	}
	return fmt.Sprintf("%.20q", p.rest)
}
