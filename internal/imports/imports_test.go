// Package imports holds the rules of which folder may import which. It has no code of its own.
package imports

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/millrace/millrace"

// graph maps each package, or folder, to those of the module that it imports.
type graph map[string][]string

// packages returns the imports of this module's packages, without those of tests. Names are relative
// to the module.
func packages(t *testing.T) graph {
	t.Helper()
	cmd := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	require.NoError(t, err)
	g := graph{}
	for line := range strings.Lines(string(out)) {
		names := strings.Fields(line)
		from := strings.TrimPrefix(names[0], module+"/")
		g[from] = nil
		for _, to := range names[1:] {
			if to, ok := strings.CutPrefix(to, module+"/"); ok {
				g[from] = append(g[from], to)
			}
		}
	}
	require.Greater(t, len(g), 20, "packages of this module")
	return g
}

// fold merges nodes whose name is the same, and drops edges within one.
func (g graph) fold(name func(string) string) graph {
	folded := graph{}
	for from, list := range g {
		from = name(from)
		folded[from] = append(folded[from], nil...)
		for _, to := range list {
			if to = name(to); to != from && !slices.Contains(folded[from], to) {
				folded[from] = append(folded[from], to)
			}
		}
	}
	return folded
}

// circle returns a path that ends where it begins, nil without one.
func (g graph) circle() []string {
	done := map[string]bool{}
	var visit func(path []string) []string
	visit = func(path []string) []string {
		at := path[len(path)-1]
		for _, to := range g[at] {
			if i := slices.Index(path, to); i >= 0 {
				return append(path[i:], to)
			}
			if done[to] {
				continue
			}
			if found := visit(append(slices.Clip(path), to)); found != nil {
				return found
			}
		}
		done[at] = true
		return nil
	}
	for from := range g {
		if found := visit([]string{from}); found != nil {
			return found
		}
	}
	return nil
}

func folder(name string) string {
	top, _, _ := strings.Cut(name, "/")
	return top
}

// within reports whether a package is a folder or lies in it.
func within(name, folder string) bool { return name == folder || strings.HasPrefix(name, folder+"/") }

// rules say what is wrong with an import, "" where nothing is.
var rules = []struct {
	name  string
	wrong func(from, to string) bool
}{
	{"only cmd and benchmarks import lab: research is no part of serving", func(from, to string) bool {
		return within(to, "lab") && !within(from, "lab") && !within(from, "cmd") && !within(from, "benchmarks")
	}},
	{"only the interfaces import api/openai, and a script that renders as they do", func(from, to string) bool {
		return to == "api/openai" && (!strings.HasPrefix(from, "api/") && !within(from, "scripts/templates") || within(from, "api/call"))
	}},
	{"of actors, only node imports its siblings; the others import msg", func(from, to string) bool {
		return strings.HasPrefix(from, "actors/") && !within(from, "actors/node") && within(to, "actors") &&
			!within(to, "actors/msg") && actor(from) != actor(to)
	}},
	{"api/call knows no wire format, no auth and nothing durable", func(from, to string) bool {
		// pure: texts and grammars
		return within(from, "api/call") && to != "api" && to != "api/tools" && to != "compute/grammar" && to != "compute/grammar/schema"
	}},
	{"durable/log knows no other folder of durable but callpb", func(from, to string) bool {
		return within(from, "durable/log") && within(to, "durable") && to != "durable" && to != "durable/callpb"
	}},
	{"nothing imports cmd", func(from, to string) bool { return within(to, "cmd") && !within(from, "cmd") }},
	{"nothing but cmd imports the nodes of actors", func(from, to string) bool {
		return within(to, "actors/node") && !within(from, "actors/node") && !within(from, "cmd")
	}},
}

// actor is the folder of an actor: actors/NAME.
func actor(name string) string {
	parts := strings.SplitN(name, "/", 3)
	return strings.Join(parts[:min(len(parts), 2)], "/")
}

// broken lists the imports that break a rule.
func broken(g graph, wrong func(from, to string) bool) (list []string) {
	for from, all := range g {
		for _, to := range all {
			if wrong(from, to) {
				list = append(list, from+" imports "+to)
			}
		}
	}
	return list
}

func TestTopLevelFoldersFormNoCircle(t *testing.T) {
	require.Nil(t, packages(t).fold(folder).circle())
}

func TestEachImportKeepsTheRules(t *testing.T) {
	g := packages(t)
	for _, r := range rules {
		require.Empty(t, broken(g, r.wrong), r.name)
	}
}

// TestEachRuleCanBeBroken has one import that breaks each rule, and one beside it that does not.
func TestEachRuleCanBeBroken(t *testing.T) {
	for i, c := range []struct{ from, bad, good string }{
		{"compute/sched", "lab/eval", "kvmgr"},
		{"durable/calls", "api/openai", "api/call"},
		{"actors/gateway", "actors/kv", "actors/msg/msgpb"},
		{"api/call", "auth", "api"},
		{"durable/log", "durable/calls", "durable/callpb"},
		{"e2e/chaos", "cmd/millrace", "client"},
		{"e2e", "actors/node", "api"},
	} {
		require.Equal(t, []string{c.from + " imports " + c.bad}, broken(graph{c.from: {c.bad, c.good}}, rules[i].wrong))
	}
	require.Empty(t, broken(graph{"actors/node": {"actors/kv"}, "actors/kv": {"actors/kv/tree"}}, rules[2].wrong))
	require.Len(t, broken(graph{"api/call": {"api/openai"}, "api": {"api/openai"}}, rules[1].wrong), 2)
	circle := graph{"api/http/httpserver": {"auth"}, "auth": {"compute/sched"}, "compute/sched": {"api"}, "api": nil}.fold(folder).circle()
	require.Len(t, circle, 4)
	require.Equal(t, circle[0], circle[3])
}

// TestRustModulesFormNoCircle reads the paths that begin with crate:: in each file of the Rust library.
func TestRustModulesFormNoCircle(t *testing.T) {
	const src = "../../tokenizer/jinja/src"
	files, err := filepath.Glob(src + "/*.rs")
	require.NoError(t, err)
	require.Greater(t, len(files), 2)
	all := map[string]string{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		all[strings.TrimSuffix(filepath.Base(f), ".rs")] = string(text)
	}
	g := rust(all)
	edges := 0
	for _, list := range g {
		edges += len(list)
	}
	require.NotZero(t, edges, "uses of crate::")
	require.Nil(t, g.circle())
	require.NotNil(t, rust(map[string]string{"a": "use crate::b::{X, Y};", "b": "fn f() -> crate::a::Z {}"}).circle())
	require.NotNil(t, rust(map[string]string{"a": "use crate::{b::X, c};", "b": "", "c": "use super::a;"}).circle())
}

var (
	rustPath  = regexp.MustCompile(`\b(?:crate|super)::(\w+|\{[^}]*\})`)
	rustEntry = regexp.MustCompile(`\w+`)
)

// rust is the graph of Rust modules, by their names. lib.rs is the crate itself.
func rust(files map[string]string) graph {
	g := graph{}
	for name, text := range files {
		g[name] = nil
		for _, m := range rustPath.FindAllStringSubmatch(text, -1) {
			for _, word := range rustEntry.FindAllString(m[1], -1) {
				if _, ok := files[word]; ok && word != name && !slices.Contains(g[name], word) {
					g[name] = append(g[name], word)
				}
			}
		}
	}
	return g
}
