package docs_test

import (
	"bufio"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the repository's root, relative to this package.
const root = ".."

// documents returns the Markdown files that these tests hold, relative to the root.
func documents(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, file := range repository(t) {
		if strings.HasSuffix(file, ".md") && !strings.HasPrefix(file, "benchmarks/results/") {
			found = append(found, file)
		}
	}
	return found
}

// repository returns the files of the repository, relative to the root, without those that git ignores.
func repository(t *testing.T) []string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for file := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if _, err := os.Lstat(filepath.Join(root, file)); err == nil { // not deleted
			files = append(files, file)
		}
	}
	return files
}

// A line is a line of a document outside of its code blocks.
type line struct {
	number int
	text   string
}

// prose returns the lines of a document that are not in code blocks.
func prose(t *testing.T, document string) []line {
	t.Helper()
	file, err := os.Open(filepath.Join(root, document))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	var lines []line
	fenced := false
	scanner := bufio.NewScanner(file)
	for n := 1; scanner.Scan(); n++ {
		if strings.HasPrefix(strings.TrimSpace(scanner.Text()), "```") {
			fenced = !fenced
		} else if !fenced {
			lines = append(lines, line{n, scanner.Text()})
		}
	}
	if err := scanner.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`^#+ (.*)$`)
	codeSpan = regexp.MustCompile("`([^`]+)`")
	notSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the anchors of a document's headings, as GitHub makes them.
func anchors(t *testing.T, document string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, l := range prose(t, document) {
		if m := heading.FindStringSubmatch(l.text); m != nil {
			text := strings.ToLower(link.ReplaceAllString(m[1], "]"))
			found[strings.ReplaceAll(notSlug.ReplaceAllString(text, ""), " ", "-")] = true
		}
	}
	return found
}

// Every relative link names a file of the repository, and its anchor a heading of that file.
func TestLinksLeadSomewhere(t *testing.T) {
	links := 0
	for _, document := range documents(t) {
		for _, l := range prose(t, document) {
			for _, m := range link.FindAllStringSubmatch(l.text, -1) {
				if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
					continue
				}
				links++
				target, anchor, _ := strings.Cut(m[1], "#")
				path := document
				if target != "" {
					path = filepath.Join(filepath.Dir(document), target)
				}
				if _, err := os.Stat(filepath.Join(root, path)); err != nil {
					t.Errorf("%s:%d: the link %q leads to %s, which does not exist", document, l.number, m[1], path)
				} else if anchor != "" && !anchors(t, path)[anchor] {
					t.Errorf("%s:%d: the link %q: %s has no heading for it", document, l.number, m[1], path)
				}
			}
		}
	}
	if links < 50 {
		t.Errorf("found %d links, expected at least 50: is the pattern of links right?", links)
	}
}

var (
	pathSpan   = regexp.MustCompile(`^[\w.-]+(/[\w.*-]+)+/?$`)
	identifier = regexp.MustCompile(`\.([A-Z]\w*)$`)
	sourceSpan = regexp.MustCompile(`^[\w*-]+\.(go|cpp|hpp|h|rs|py|sh|md|proto)$`)
	// made holds folders that builds, tests and servers write.
	made = regexp.MustCompile(`^(build|bin|data|\.venv)/`)
)

// exists reports whether one of the paths, relative to the root, exists. A path may be a pattern.
func exists(paths ...string) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		found, _ := filepath.Glob(filepath.Join(root, path))
		return len(found) > 0
	})
}

// Every path in the text (`compute/sched`, `docs/api.md`) exists. A path is relative to the root, to the document's folder, or to
// the folders of kernels. A file name without a folder must be the name of some file. NAME stands for any name.
func TestPathsInTextExist(t *testing.T) {
	files := repository(t)
	tops, names := map[string]bool{}, map[string]bool{}
	for _, file := range files {
		top, _, _ := strings.Cut(file, "/")
		tops[top] = true
		names[filepath.Base(file)] = true
	}
	paths := 0
	for _, document := range documents(t) {
		if document == "CHANGELOG.md" || strings.HasPrefix(document, "scripts/") { // files of their time, files of other projects
			continue
		}
		for _, l := range prose(t, document) {
			for _, m := range codeSpan.FindAllStringSubmatch(l.text, -1) {
				span := strings.TrimPrefix(strings.TrimPrefix(m[1], "./"), "../")
				span = identifier.ReplaceAllString(span, "") // `compute/sim.Device` names a type of a package
				if sourceSpan.MatchString(span) {
					paths++
					if !names[span] && !strings.Contains(span, "*") {
						t.Errorf("%s:%d: no file has the name %s", document, l.number, m[1])
					}
					continue
				}
				top, _, _ := strings.Cut(span, "/")
				local := filepath.Join(filepath.Dir(document), span)
				if !pathSpan.MatchString(span) || strings.Contains(span, "NAME") || made.MatchString(span) || !tops[top] &&
					!sourceSpan.MatchString(filepath.Base(span)) {
					continue
				}
				paths++
				if !exists(span, local, filepath.Join("kernels", span), filepath.Join("kernels/sycl", span),
					filepath.Join("kernels/gpu", span), filepath.Join("kernels/cuda", span)) {
					t.Errorf("%s:%d: %s does not exist", document, l.number, m[1])
				}
			}
		}
	}
	if paths < 100 {
		t.Errorf("found %d paths, expected at least 50: is the pattern of paths right?", paths)
	}
}

// Pictures are well-formed XML, and say in words what they show.
func TestPicturesParse(t *testing.T) {
	pictures, err := filepath.Glob("*.svg")
	if err != nil || len(pictures) == 0 {
		t.Fatalf("found no pictures (%v), expected at least one", err)
	}
	for _, picture := range pictures {
		data, err := os.ReadFile(picture)
		if err != nil {
			t.Fatal(err)
		}
		var svg struct {
			XMLName xml.Name `xml:"http://www.w3.org/2000/svg svg"`
			Title   string   `xml:"title"`
		}
		if err := xml.Unmarshal(data, &svg); err != nil || svg.Title == "" {
			t.Errorf("%s: found %v and the title %q, expected an SVG with a title", picture, err, svg.Title)
		}
	}
}

// Every report in benchmarks/results, and every record in benchmarks/measurements, is linked by a document.
func TestReportsAreLinked(t *testing.T) {
	linked := map[string]bool{}
	for _, document := range documents(t) {
		for _, l := range prose(t, document) {
			for _, m := range link.FindAllStringSubmatch(l.text, -1) {
				target, _, _ := strings.Cut(m[1], "#")
				linked[filepath.Join(filepath.Dir(document), target)] = true
			}
		}
	}
	for _, file := range repository(t) {
		folder := filepath.Dir(file)
		if strings.HasSuffix(file, ".md") && (folder == "benchmarks/results" || folder == "benchmarks/measurements") && !linked[file] {
			t.Errorf("%s: no document links this report", file)
		}
	}
}
