package words

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var only = flag.String("path", "", "show everything found under this path, pending or not")

// prose are the endings of files that people read as text.
var prose = []string{".go", ".md", ".c", ".cpp", ".h", ".hpp", ".rs", ".py", ".sh", ".js", ".ts", ".tsx", ".html", ".css", ".yml", ".yaml",
	".proto", ".toml", ".cmake", ".conf", ".in", "CMakeLists.txt", "Makefile", "Dockerfile"}

// found is a place that breaks a rule.
type found struct {
	path string
	line int
	text string
	rule *rule
}

func (f found) String() string {
	return fmt.Sprintf("%s:%d: found %q, expected: %s", f.path, f.line, f.text, f.rule.write)
}

func TestTheRepositoryIsWrittenInPlainEnglish(t *testing.T) {
	files := tracked(t)
	if *only != "" {
		for _, f := range check(t, files, func(p string) bool { return under(p, *only) }) {
			t.Error(f)
		}
		return
	}
	pending := readPending(t)
	left := map[string]int{}
	for _, f := range check(t, files, func(string) bool { return true }) {
		if p := covering(pending, f.path); p != "" {
			left[p]++
		} else {
			t.Error(f)
		}
	}
	for _, p := range pending {
		if left[p] == 0 {
			t.Errorf("pending.txt: nothing is left to do in %s: remove it from the list", p)
		}
		t.Logf("pending: %s: %d", p, left[p])
	}
}

// check returns the places in the chosen files that break a rule.
func check(t *testing.T, files []string, chosen func(file string) bool) (all []found) {
	t.Helper()
	for _, file := range files {
		if !chosen(file) {
			continue
		}
		text, err := os.ReadFile("../../" + file)
		if os.IsNotExist(err) {
			continue // deleted and not committed yet
		}
		require.NoError(t, err)
		all = append(all, checkText(file, string(text))...)
	}
	return all
}

// checkText returns the places in one file that break a rule, in order.
func checkText(file, text string) (all []found) {
	plain, code := flatten(withoutMarkers(text)), (*flat)(nil)
	for i := range rules {
		r := &rules[i]
		if len(r.in) > 0 && !slices.ContainsFunc(r.in, func(p string) bool { return under(file, p) }) {
			continue
		}
		in := plain
		if r.code {
			if code == nil {
				code = flatten(codeOf(file, text))
			}
			in = code
		}
		if !slices.ContainsFunc(r.has, func(w string) bool { return strings.Contains(in.lower, w) }) {
			continue
		}
		for _, at := range r.found.FindAllStringIndex(in.text, -1) {
			if !r.allows(in.text, at) {
				all = append(all, found{path: file, line: in.line(at[0]), text: in.text[at[0]:at[1]], rule: r})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b found) int { return a.line - b.line })
	return all
}

// allows says whether the match at lies in a phrase that is an exception.
func (r *rule) allows(text string, at []int) bool {
	for pattern := range r.except {
		from, to := max(0, at[0]-60), min(len(text), at[1]+60)
		for _, e := range phrase(pattern).FindAllStringIndex(text[from:to], -1) {
			if from+e[0] <= at[0] && at[1] <= from+e[1] {
				return true
			}
		}
	}
	return false
}

// flat is a text in which each run of white space is one space.
type flat struct {
	text, lower string
	starts      []int // in text, of each line
}

func flatten(text string) *flat {
	var b strings.Builder
	var f flat
	for line := range strings.Lines(text) {
		f.starts = append(f.starts, b.Len())
		for i, word := range strings.Fields(line) {
			if i > 0 || b.Len() > 0 {
				b.WriteByte(' ')
			}
			if i == 0 {
				f.starts[len(f.starts)-1] = b.Len()
			}
			b.WriteString(word)
		}
	}
	f.text = b.String()
	f.lower = strings.ToLower(f.text)
	return &f
}

// line is the number, from 1, of the line of an offset in text.
func (f *flat) line(at int) int {
	after, _ := slices.BinarySearchFunc(f.starts, at, func(start, at int) int {
		if start <= at {
			return -1
		}
		return 1
	})
	return after
}

// marker begins a line of a comment, a quotation or a list.
var marker = regexp.MustCompile(`(?m)^[ \t]*(?://+!?|#+|\*|>)(?:[ \t]|$)`)

// withoutMarkers removes the markers of comments, so that phrases go over line ends.
func withoutMarkers(text string) string { return marker.ReplaceAllString(text, "") }

// notCode are comments and literals, of Go and C++.
var notCode = regexp.MustCompile(`//[^\n]*|/\*(?s:.*?)\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|` + "`[^`]*`")

// codeOf removes comments and literals. A file that is no code has none.
func codeOf(file, text string) string {
	switch path.Ext(file) {
	case ".go", ".cpp", ".hpp", ".h", ".txt":
	default:
		return ""
	}
	return notCode.ReplaceAllStringFunc(text, func(m string) string {
		return " " + strings.Repeat("\n", strings.Count(m, "\n"))
	})
}

// tracked lists the files of the repository that people read, without those in notOurs. It
// includes new files that git does not ignore.
func tracked(t *testing.T) (files []string) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = "../.."
	out, err := list.Output()
	require.NoError(t, err, "git lists the files")
	for name := range bytes.SplitSeq(out, []byte{0}) {
		file := string(name)
		isProse := slices.ContainsFunc(prose, func(end string) bool { return strings.HasSuffix(file, end) })
		if isProse && !slices.ContainsFunc(records(), func(p string) bool { return under(file, p) }) {
			files = append(files, file)
		}
	}
	require.Greater(t, len(files), 500, "files to read")
	return files
}

func records() (paths []string) {
	for p := range notOurs {
		paths = append(paths, p)
	}
	return paths
}

// readPending reads the paths that are not done yet.
func readPending(t *testing.T) (paths []string) {
	t.Helper()
	text, err := os.ReadFile("pending.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			paths = append(paths, line)
		}
	}
	return paths
}

// covering is the longest of the paths that file is under, or "".
func covering(paths []string, file string) (longest string) {
	for _, p := range paths {
		if under(file, p) && len(p) > len(longest) {
			longest = p
		}
	}
	return longest
}

// under says whether file is the path or lies in it.
func under(file, p string) bool {
	return file == p || strings.HasPrefix(file, strings.TrimSuffix(p, "/")+"/")
}

func TestRulesFindWhatTheyAreFor(t *testing.T) {
	for text, want := range map[string]string{
		"// It waits behind the other.":                   "behind",
		"// A server behind a reverse proxy.":             "",
		"// The prompt goes\n\t// on after it.":           "goes on",
		"// A row in front of it.":                        "in front of",
		"// With so many rows":                            "so many",
		"// so long as it lives":                          "so long",
		"// takeTurns has the sequences that decode wait": "",
		"// It has the worker send a token.":              "has the worker send",
		"// It is taken by all for dead.":                 "taken by all for dead",
		"// Of each row the first.":                       "Of e",
		"// Two. Of each row the first.":                  "Of e",
		"// The Office of it. Often.":                     "",
		"# what was sent":                                 "what was",
		"# who is let in":                                 "let in",
		"// It tells the client.":                         "tells",
		"// Drafts are guesses.":                          "guesses",
		"// The key cannot be guessed.":                   "",
		"// The tokeniser.":                               "tokeniser",
		"// It tokenises.":                                "tokenises",
		"// The colour of it.":                            "colour",
		"// A moved sequence.":                            "moved sequence",
		"func (t *tape) read() {}":                        "tape",
		"// On tape.":                                     "",
		"type eventTape struct{}":                         "eventTape",
		"var tapered int":                                 "",
		"s := \"the tape\"":                               "",
	} {
		var got []string
		for _, f := range checkText("resume/x.go", text) {
			got = append(got, f.text)
		}
		if want == "" {
			require.Empty(t, got, text)
		} else {
			require.Equal(t, []string{want}, got, text)
		}
	}
}
