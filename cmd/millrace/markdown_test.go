package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/rivo/uniseg"
	"github.com/stretchr/testify/require"
)

// rendered is a text on a terminal, of parts of some bytes.
func rendered(text string, width, part int) string {
	var out strings.Builder
	m := newMarkdown(&out, width, "")
	for len(text) > 0 {
		n := min(part, len(text))
		for n < len(text) && text[n]&0xC0 == 0x80 { // whole characters, as the server sends them
			n++
		}
		m.add(text[:n])
		text = text[n:]
	}
	m.close()
	return out.String()
}

const answerText = "# A title\n\nSome **bold words here** and *one* with `code --flag` in 2 * 3 = 6, snake_case_name and a\\*b.\n\n" +
	"- first item that is longer than a line\n  - nested **one**\n12. twelve\n> a quote\n\n```go\nfunc  main() { // **not bold** and much longer than the width\n}\n```\n" +
	"| a | b |\n|---|---|\n---\nLast: 日本語のテキストは空白がない。 **open\n\nplain end"

var codes = regexp.MustCompile("\x1b\\[[0-9]*m")

func TestMarkdownIsShownAsItComes(t *testing.T) {
	whole := rendered(answerText, 30, len(answerText))
	for _, part := range []int{1, 2, 3, 7} {
		require.Equal(t, whole, rendered(answerText, 30, part), "the parts make no difference")
	}
	require.Contains(t, whole, "\x1b[1mA title", "a heading without its mark")
	require.Contains(t, whole, "\x1b[1mbold words here\x1b[0m")
	require.Contains(t, whole, "\x1b[3mone\x1b[0m")
	require.Contains(t, whole, "\x1b[36mcode")
	require.Contains(t, whole, "\x1b[36mfunc  main() { // **not bold** and much longer than the width\x1b[0m\n")
	plain := codes.ReplaceAllString(whole, "")
	for _, want := range []string{"2 * 3 = 6", "snake_case_name", "a*b.", "• first item that is longer\n  than a line\n",
		"  • nested one\n",
		"12. twelve\n", "│ a quote\n",
		"| a | b |\n|---|---|\n", "───\n", "\n\nplain end"} {
		require.Contains(t, plain, want)
	}
	require.NotContains(t, plain, "```")
	require.True(t, strings.HasSuffix(whole, "plain end"), "an open mark ends with its paragraph")
	for line := range strings.Lines(plain) {
		if !strings.Contains(line, "main()") {
			require.LessOrEqual(t, uniseg.StringWidth(strings.TrimSuffix(line, "\n")), 30, line)
		}
	}
}

func TestMarkdownEndsItsStyles(t *testing.T) {
	for _, text := range []string{"**bold", "`code", "```\ncode", "# heading", "*a **b"} {
		out := rendered(text, 30, 1)
		last := codes.FindAllString(out, -1)
		require.NotEmpty(t, last)
		require.Equal(t, sgrReset, last[len(last)-1], text)
	}
	require.Equal(t, "plain text", rendered("plain text", 30, 1), "no codes without a style")
	var out strings.Builder
	m := newMarkdown(&out, 30, sgrDim)
	m.add("a **b** c")
	m.close()
	require.Equal(t, "\x1b[2ma \x1b[0m\x1b[2m\x1b[1mb\x1b[0m\x1b[2m c\x1b[0m", out.String())
}
