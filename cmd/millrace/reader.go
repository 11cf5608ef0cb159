package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// errInterrupted is a Ctrl-C at the prompt.
var errInterrupted = errors.New("interrupted")

// readLine reads a line after a prompt. The error at the end is io.EOF, that of a Ctrl-C errInterrupted.
type readLine func(prompt string) (string, error)

// newReader reads lines: with editing and history on a terminal.
func newReader(in io.Reader, out io.Writer) readLine {
	if f, ok := in.(*os.File); ok && isTerminal(in) {
		return (&console{in: f, out: out}).read
	}
	lines := bufio.NewScanner(in)
	const longest = 4 << 20
	lines.Buffer(nil, longest)
	return func(string) (string, error) {
		if lines.Scan() {
			return lines.Text(), nil
		}
		if err := lines.Err(); err != nil {
			return "", fmt.Errorf("standard input: %w", err)
		}
		return "", io.EOF
	}
}

// isTerminal says whether a reader or writer is a terminal.
func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// readMessage reads a message: a line, lines of which all but the last end in a backslash, or lines from one that begins with three quotes
// to one that ends with them.
func readMessage(read readLine) (string, error) {
	const quotes, more = `"""`, ". "
	line, err := read("> ")
	if err != nil {
		return "", err
	}
	if text, quoted := strings.CutPrefix(strings.TrimSpace(line), quotes); quoted {
		for !strings.HasSuffix(strings.TrimSpace(text), quotes) {
			if line, err = read(more); err != nil {
				return unfinished(text, err)
			}
			text += "\n" + line
		}
		return strings.Trim(strings.TrimSuffix(strings.TrimSpace(text), quotes), "\n"), nil
	}
	for strings.HasSuffix(line, `\`) {
		next, err := read(more)
		line = strings.TrimSuffix(line, `\`)
		if err != nil {
			return unfinished(line, err)
		}
		line += "\n" + next
	}
	return line, nil
}

// unfinished returns the part of a message before the end of the input.
func unfinished(text string, err error) (string, error) {
	if errors.Is(err, io.EOF) && strings.TrimSpace(text) != "" {
		return text, nil
	}
	return "", err
}

// console reads from a terminal.
type console struct {
	in  *os.File
	out io.Writer

	editor      *term.Terminal
	history     term.History
	interrupted bool
}

// Read implements io.Reader. It notes a Ctrl-C, which the editor returns as the end of the input.
func (c *console) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	const ctrlC = 3
	c.interrupted = c.interrupted || bytes.IndexByte(p[:n], ctrlC) >= 0
	return n, err
}

// read reads a line. Lines that are pasted together are one, with their line ends. The terminal is raw for this time only, so that a
// Ctrl-C while an answer is printed is a signal.
func (c *console) read(prompt string) (string, error) {
	before, err := term.MakeRaw(int(c.in.Fd()))
	if err != nil {
		return "", err
	}
	defer term.Restore(int(c.in.Fd()), before) //nolint:errcheck // the terminal is gone
	if c.editor == nil {
		c.editor = term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{c, c.out}, "")
		if c.history != nil {
			c.editor.History = c.history
		}
		c.history = c.editor.History
	}
	c.editor.SetPrompt(prompt)
	if width, height, err := term.GetSize(int(c.in.Fd())); err == nil && width > 0 {
		if err := c.editor.SetSize(width, height); err != nil {
			return "", err
		}
	}
	c.editor.SetBracketedPasteMode(true)
	defer c.editor.SetBracketedPasteMode(false)
	var pasted []string
	for {
		line, err := c.editor.ReadLine()
		switch {
		case errors.Is(err, term.ErrPasteIndicator):
			pasted = append(pasted, line)
			continue
		case err != nil && c.interrupted:
			c.editor, c.interrupted = nil, false // it keeps the line
			fmt.Fprint(c.out, "\r\n")
			return "", errInterrupted
		case err != nil:
			return "", err
		}
		return strings.Join(append(pasted, line), "\n"), nil
	}
}
