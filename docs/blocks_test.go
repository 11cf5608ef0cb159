package docs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

// A block is a fenced block of a document.
type block struct {
	document string
	number   int // line of the opening fence
	language string
	text     string
	notRun   string // reason from the comment before the block; empty: the block is run
}

// notRun is the comment that says why no test runs the block that follows.
var notRun = regexp.MustCompile(`^\s*<!-- not run: (.+) -->$`)

// forUsers says whether commands and blocks of a document are held: those of the other folders need what these tests do not have.
func forUsers(document string) bool {
	return document == "README.md" || document == "CONTRIBUTING.md" || strings.HasPrefix(document, "docs/") ||
		strings.HasPrefix(document, "deploy/")
}

// blocks returns the fenced blocks of the documents for users.
func blocks(t *testing.T) []block {
	t.Helper()
	var found []block
	for _, document := range documents(t) {
		if !forUsers(document) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, document))
		require.NoError(t, err)
		var open *block
		var indent, reason string
		for i, l := range strings.Split(string(data), "\n") {
			trimmed := strings.TrimSpace(l)
			switch {
			case open == nil && strings.HasPrefix(trimmed, "```"):
				open = &block{document: document, number: i + 1, language: trimmed[3:], notRun: reason}
				indent = l[:strings.Index(l, "```")]
			case open != nil && trimmed == "```":
				found = append(found, *open)
				open, reason = nil, ""
			case open != nil:
				open.text += strings.TrimPrefix(l, indent) + "\n"
			case notRun.MatchString(l):
				reason = notRun.FindStringSubmatch(l)[1]
			case trimmed != "":
				require.Emptyf(t, reason, "%s:%d: found text after a comment \"not run\", expected a block", document, i+1)
			}
		}
		require.Nilf(t, open, "%s: a block is not closed", document)
	}
	return found
}

// Each block is run, or the comment before it says why not. Commands run against a server with the demo model.
func TestBlocksWork(t *testing.T) {
	server := startDemo(t)
	for _, b := range blocks(t) {
		name := b.document + ":" + b.language
		t.Run(name, func(t *testing.T) {
			switch {
			case b.language == "text" || b.language == "mermaid": // output of a program, a picture
				require.Emptyf(t, b.notRun, "%s:%d: output and pictures need no comment", b.document, b.number)
			case b.language != "sh" && b.language != "json" && b.language != "yaml" && b.language != "go":
				t.Fatalf("%s:%d: found a block of %q, expected sh, json, yaml, go, text or mermaid", b.document, b.number, b.language)
			case b.notRun != "":
				t.Skipf("%s:%d: not run: %s", b.document, b.number, b.notRun)
			case b.language == "json":
				require.Truef(t, json.Valid([]byte(b.text)), "%s:%d: not JSON:\n%s", b.document, b.number, b.text)
			case b.language == "yaml":
				var value any
				require.NoErrorf(t, yaml.Unmarshal([]byte(b.text), &value), "%s:%d", b.document, b.number)
			case b.language == "go":
				file := filepath.Join(t.TempDir(), "main.go")
				require.NoError(t, os.WriteFile(file, []byte(b.text), 0o600))
				vet := exec.Command("go", "vet", file)
				vet.Dir = root
				out, err := vet.CombinedOutput()
				require.NoErrorf(t, err, "%s:%d: %s", b.document, b.number, out)
			case b.language == "sh":
				out, err := server.run(t, b.text)
				require.NoErrorf(t, err, "%s:%d: %s", b.document, b.number, out)
			}
		})
	}
}

// toRemove is the folder that workspace made; empty if no test needed it.
var toRemove string

// workspace is the folder in which commands run: it has the program as bin/millrace, and the repository's models and test data.
var workspace = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "millrace-docs-")
	if err != nil {
		return "", err
	}
	toRemove = folder
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(folder, "bin", "millrace"),
		"../cmd/millrace").CombinedOutput()
	if err != nil {
		return folder, fmt.Errorf("go build: %w: %s", err, out)
	}
	for _, name := range []string{"models", "testdata"} {
		target, err := filepath.Abs(filepath.Join(root, name))
		if err != nil {
			return folder, err
		}
		if err := os.Symlink(target, filepath.Join(folder, name)); err != nil {
			return folder, err
		}
	}
	// Blocks that are run may call curl and millrace only.
	curl, err := exec.LookPath("curl")
	if err != nil {
		return folder, err
	}
	if err := os.Symlink(curl, filepath.Join(folder, "bin", "curl")); err != nil {
		return folder, err
	}
	// An HTTP error fails the block.
	return folder, os.WriteFile(filepath.Join(folder, ".curlrc"), []byte("fail-with-body\nsilent\nshow-error\n"), 0o600)
})

func TestMain(m *testing.M) {
	code := m.Run()
	if toRemove != "" {
		_ = os.RemoveAll(toRemove)
	}
	os.Exit(code)
}

// demo is a server with the demo model.
type demo struct {
	folder, http, nats string
}

// startDemo starts a server that ends with the test.
func startDemo(t *testing.T) *demo {
	t.Helper()
	folder, err := workspace()
	require.NoError(t, err)
	d := &demo{folder: folder, http: freeAddress(t), nats: freeAddress(t)}
	var log bytes.Buffer
	cmd := exec.Command(filepath.Join(folder, "bin", "millrace"), "serve", "--listen", d.http, "--nats-listen", d.nats,
		"--data-dir", filepath.Join(folder, "data"), "--kv-memory", "64MiB")
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Logf("server log:\n%s", &log)
		}
	})
	require.Eventually(t, func() bool {
		r, err := http.Get("http://" + d.http + "/health/ready")
		if err != nil {
			return false
		}
		_ = r.Body.Close()
		return r.StatusCode == http.StatusOK
	}, time.Minute, 10*time.Millisecond, "the server becomes ready")
	return d
}

// freeAddress returns a loopback address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// run runs commands of a document, with the demo server's addresses in place of the default ones.
func (d *demo) run(t *testing.T, commands string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	commands = strings.NewReplacer("127.0.0.1:8080", d.http, "127.0.0.1:4222", d.nats).Replace(commands)
	cmd := exec.CommandContext(ctx, "/bin/bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir = d.folder
	cmd.Env = append(os.Environ(), "HOME="+d.folder, "PATH="+filepath.Join(d.folder, "bin"), "MILLRACE_NATS=nats://"+d.nats)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd.CombinedOutput()
}

var (
	makeTarget = regexp.MustCompile(`\bmake ([a-z][a-z0-9-]*)`)
	command    = regexp.MustCompile(`(?:^|[;&|(=] *|bin/)millrace ([a-z]+(?: create)?)`)
	flag       = regexp.MustCompile(`(?:^|\s)(--[a-z][a-z0-9-]*)`)
	flagSpan   = regexp.MustCompile("`(--[a-z][a-z0-9-]*)[^`]*`")
)

// Every `make` target, every `millrace` command and every flag of such a command that a block or the text names exists.
func TestCommandsExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	flags, all := programFlags(t)
	check := func(place, text string) {
		for _, m := range makeTarget.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(string(makefile), "\n"+m[1]+":") {
				t.Errorf("%s: the Makefile has no target %s", place, m[1])
			}
		}
		for _, m := range command.FindAllStringSubmatchIndex(text, -1) {
			name := text[m[2]:m[3]]
			if flags[name] == nil {
				t.Errorf("%s: millrace has no command %s", place, name)
				continue
			}
			rest, _, _ := strings.Cut(text[m[3]:], "|") // flags of the next program of a pipe are its own
			for _, f := range flag.FindAllStringSubmatch(rest, -1) {
				if !flags[name][f[1]] {
					t.Errorf("%s: millrace %s has no flag %s", place, name, f[1])
				}
			}
		}
	}
	for _, b := range blocks(t) {
		if b.language == "sh" {
			for i, l := range strings.Split(strings.ReplaceAll(b.text, "\\\n", " "), "\n") {
				code, _, _ := strings.Cut(l, "#")
				check(fmt.Sprintf("%s:%d", b.document, b.number+i+1), code)
			}
		}
	}
	for _, document := range documents(t) {
		if !forUsers(document) {
			continue
		}
		for _, l := range prose(t, document) {
			place := fmt.Sprintf("%s:%d", document, l.number)
			for _, m := range codeSpan.FindAllStringSubmatch(l.text, -1) {
				check(place, m[1])
			}
			for _, m := range flagSpan.FindAllStringSubmatch(l.text, -1) {
				if !all[m[1]] && !otherFlags[m[1]] {
					t.Errorf("%s: no command of millrace has the flag %s", place, m[1])
				}
			}
		}
	}
}

// otherFlags are flags of other programs that the text names.
var otherFlags = map[string]bool{
	// the fault suite
	"--lines": true, "--nice": true, "--previous": true, "--results": true, "--scenario": true, "--serve": true, "--victims": true,
	"--replies": true, "--reply-timeout": true, // nats
	"--require-hashes": true, // pip
	"--all":            true, // .ci/run
}

// programFlags returns the flags of each command of millrace, and of all commands together, from its help.
func programFlags(t *testing.T) (commands map[string]map[string]bool, all map[string]bool) {
	t.Helper()
	folder, err := workspace()
	require.NoError(t, err)
	output := func(args ...string) string {
		out, err := exec.Command(filepath.Join(folder, "bin", "millrace"), args...).Output()
		require.NoErrorf(t, err, "millrace %v", args)
		return string(out)
	}
	help := func(args ...string) string {
		text := output(append(args, "--help")...)
		if strings.Contains(text, "--help-all") { // it has the most used flags only
			text = output(append(args, "--help-all")...)
		}
		return text
	}
	commands, all = map[string]map[string]bool{}, map[string]bool{}
	names := regexp.MustCompile(`(?m)^  ([a-z]+) `)
	_, list, _ := strings.Cut(help(), "Commands:")
	for _, m := range append(names.FindAllStringSubmatch(list, -1), []string{"", "keys create"}) {
		commands[m[1]] = map[string]bool{}
		for _, f := range regexp.MustCompile(`--[a-z][a-z0-9-]*`).FindAllString(help(strings.Fields(m[1])...), -1) {
			commands[m[1]][f], all[f] = true, true
		}
	}
	require.NotEmpty(t, commands["serve"])
	return commands, all
}
