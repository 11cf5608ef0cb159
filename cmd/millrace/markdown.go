package main

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// Codes of a terminal (ECMA-48, SGR).
const (
	sgrReset  = "\x1b[0m"
	sgrBold   = "\x1b[1m"
	sgrDim    = "\x1b[2m"
	sgrItalic = "\x1b[3m"
	sgrCode   = "\x1b[36m" // cyan
)

// markdown writes a text to a terminal while it comes: words are wrapped, and headings, lists, quotes, code and emphasis are shown. A
// renderer of whole documents would show nothing before the answer ends. What it does not know stays as it is.
type markdown struct {
	out   io.Writer
	width int    // of a line, in cells
	base  string // code of the whole text; "": none

	word         strings.Builder // that is not complete; in a raw line, all of it
	begins       bool            // nothing of the line was written
	lead         int             // spaces before the line's text
	column       int
	indent       int    // of the lines that the text is wrapped to
	space        bool   // before the next word
	raw          bool   // the line is written as it is: of a table or a code block
	fence        string // of the code block; "": outside of one
	bold, italic bool
	code         bool
	heading      bool
}

func newMarkdown(out io.Writer, width int, base string) *markdown {
	m := &markdown{out: out, width: max(width, 20), base: base, begins: true}
	m.print(base, 0)
	return m
}

// add takes the next part of the text.
func (m *markdown) add(text string) {
	for _, r := range text {
		switch {
		case r == '\n':
			m.endLine()
		case m.raw:
			m.word.WriteRune(r)
		case r == ' ' || r == '\t':
			if m.begins && m.word.Len() == 0 {
				m.lead++
				continue
			}
			m.space = m.endWord()
		default:
			m.rune(r)
		}
	}
}

// rune adds a rune that is no space.
func (m *markdown) rune(r rune) {
	m.word.WriteRune(r)
	if m.begins {
		w := m.word.String()
		m.raw = r == '|' && len(w) == 1 || w == "```" || w == "~~~"
		return
	}
	if uniseg.StringWidth(string(r)) == 2 { // texts without spaces are wrapped too
		m.endWord()
	}
}

// close writes what is left, and ends all styles.
func (m *markdown) close() {
	if m.raw {
		m.rawLine()
	}
	m.endWord()
	if m.base+m.styles() != "" {
		m.base, m.bold, m.italic, m.code, m.heading = "", false, false, false, false
		m.print(sgrReset, 0)
	}
}

// endLine ends a line of the text.
func (m *markdown) endLine() {
	shown := true
	w := m.word.String()
	switch {
	case m.raw:
		shown = m.rawLine()
	case m.begins && len(w) >= 3 && strings.Trim(w, string(w[0])) == "" && strings.ContainsRune("-*_", rune(w[0])):
		m.word.Reset()
		m.print(m.styled(sgrDim, strings.Repeat("─", min(m.width, 40))), 0)
	default:
		blank := m.begins && w == ""
		m.endWord()
		if styled := m.styles(); styled != "" && (blank || m.heading) {
			m.bold, m.italic, m.code, m.heading = false, false, false, false
			m.restyle()
		}
	}
	if shown {
		m.print("\n", 0)
	}
	m.begins, m.lead, m.column, m.indent, m.space, m.raw = true, 0, 0, 0, false, m.fence != ""
}

// rawLine writes a line of a table or a code block. The fences of a block are not shown.
func (m *markdown) rawLine() (shown bool) {
	line := m.word.String()
	m.word.Reset()
	m.raw = false
	text := strings.TrimSpace(line)
	switch {
	case m.fence == "" && (strings.HasPrefix(text, "```") || strings.HasPrefix(text, "~~~")):
		m.fence = text[:3]
		return false
	case m.fence != "" && strings.HasPrefix(text, m.fence) && strings.Trim(text, m.fence[:1]) == "":
		m.fence = ""
		return false
	case m.fence != "":
		line = m.styled(sgrCode, line)
	default:
		line = strings.Repeat(" ", m.lead) + line
	}
	m.print(line, 0)
	return true
}

// endWord writes the word, on the next line if it does not fit. It says whether a space follows: not after the mark of a block.
func (m *markdown) endWord() (space bool) {
	w := m.word.String()
	if w == "" {
		return m.space || m.column > m.indent
	}
	m.word.Reset()
	if m.begins {
		m.begins = false
		if m.block(w) {
			return false
		}
		m.print(strings.Repeat(" ", m.lead), m.lead)
		m.indent, m.space = m.lead, false
	}
	text, cells := m.inline(w)
	gap := 0
	if m.space {
		gap = 1
	}
	if m.column+gap+cells > m.width && m.column > m.indent {
		m.print("\n"+strings.Repeat(" ", m.indent), 0)
		m.column, gap = m.indent, 0
	}
	m.print(strings.Repeat(" ", gap)+text, gap+cells)
	m.space = false
	return true
}

// block writes the mark of a heading, an item of a list or a quote, if the first word of a line is one.
func (m *markdown) block(w string) bool {
	var mark string
	number := strings.TrimRight(w, ".)")
	switch {
	case strings.Trim(w, "#") == "" && len(w) <= 6:
		m.heading = true
		m.restyle()
		return true
	case w == "-" || w == "*" || w == "+":
		mark = "• "
	case w == ">":
		mark = m.styled(sgrDim, "│") + " "
	case len(number) == len(w)-1 && number != "" && len(number) <= 3 && strings.Trim(number, "0123456789") == "":
		mark = w + " "
	default:
		return false
	}
	cells := max(2, len(number)+2)
	if number == w {
		cells = 2
	}
	m.print(strings.Repeat(" ", m.lead)+mark, m.lead+cells)
	m.indent = m.column
	return true
}

// inline returns a word with its emphasis and code as styles, and how many cells it takes.
func (m *markdown) inline(w string) (text string, cells int) {
	var b, plain strings.Builder
	for i := 0; i < len(w); {
		rest := w[i:]
		before, _ := utf8.DecodeLastRuneInString(w[:i])
		n := m.mark(rest, i == 0 || isMark(before))
		if n > 0 {
			b.WriteString(sgrReset + m.base + m.styles())
			i += n
			continue
		}
		if !m.code && len(rest) > 1 && rest[0] == '\\' && isMark(rune(rest[1])) {
			i, rest = i+1, rest[1:]
		}
		r, size := utf8.DecodeRuneInString(rest)
		b.WriteRune(r)
		plain.WriteRune(r)
		i += size
	}
	return b.String(), uniseg.StringWidth(plain.String())
}

// mark takes a mark of emphasis or code at the begin of the rest of a word, and returns its length; 0 if there is none. opens says that
// no letter comes before it.
func (m *markdown) mark(rest string, opens bool) int {
	if rest[0] == '`' {
		m.code = !m.code
		return 1
	}
	if m.code {
		return 0
	}
	for _, mark := range []string{"**", "__", "*", "_"} {
		after, ok := strings.CutPrefix(rest, mark)
		if !ok {
			continue
		}
		style := &m.italic
		if len(mark) == 2 {
			style = &m.bold
		}
		next, _ := utf8.DecodeRuneInString(after)
		ends := after == "" || isMark(next)
		switch {
		case *style && (ends || mark == "**"), !*style && after != "" && (opens || mark == "**"):
			*style = !*style
			return len(mark)
		}
		return 0
	}
	return 0
}

func isMark(r rune) bool { return unicode.IsPunct(r) || unicode.IsSymbol(r) }

// styles are the codes of what the text is in.
func (m *markdown) styles() string {
	s := ""
	if m.bold || m.heading {
		s += sgrBold
	}
	if m.italic {
		s += sgrItalic
	}
	if m.code {
		s += sgrCode
	}
	return s
}

func (m *markdown) restyle() { m.print(sgrReset+m.base+m.styles(), 0) }

func (m *markdown) styled(code, text string) string {
	return code + text + sgrReset + m.base + m.styles()
}

// print writes a text that takes some cells of the line.
func (m *markdown) print(text string, cells int) {
	if text != "" {
		fmt.Fprint(m.out, text)
	}
	m.column += cells
}
