package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// modules are the Go modules of the source; "": its root.
var modules = []string{"", "benchmarks/k6"}

// goTests is the tests, fuzz targets, benchmarks and examples of all packages: what `go test -list .` prints, read
// from the source, without building. A name says the promise, wherever it lies, so packages are not part of a key.
func goTests(ctx context.Context, s *subject) (facts, error) {
	f := facts{}
	for _, module := range modules {
		cmd := exec.CommandContext(ctx, "go", "list", "-tags", "chaos", "-json=Dir,TestGoFiles,XTestGoFiles", "./...")
		cmd.Dir = filepath.Join(s.source, module)
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go list in %s: %w", cmd.Dir, err)
		}
		decoder := json.NewDecoder(bytes.NewReader(out))
		for {
			var p struct {
				Dir                       string
				TestGoFiles, XTestGoFiles []string
			}
			if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, err
			}
			for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
				if err := f.addFile(filepath.Join(p.Dir, name)); err != nil {
					return nil, err
				}
			}
		}
	}
	return f, nil
}

// addFile adds the tests of a file.
func (f facts) addFile(path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, d := range file.Decls {
		if function, ok := d.(*ast.FuncDecl); ok && function.Recv == nil && isTest(function.Name.Name) {
			f.count(function.Name.Name)
		}
	}
	return nil
}

// count adds a name, with a number from the second time on: the same name in two packages is two tests.
func (f facts) count(name string) {
	key := name
	for n := 2; ; n++ {
		if _, taken := f[key]; !taken {
			f[key] = ""
			return
		}
		key = fmt.Sprintf("%s (%d)", name, n)
	}
}

// isTest says whether `go test` runs a function of this name. TestMain is none.
func isTest(name string) bool {
	for _, prefix := range []string{"Test", "Fuzz", "Benchmark", "Example"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && name != "TestMain" {
			first, _ := utf8.DecodeRuneInString(rest)
			return rest == "" || !unicode.IsLower(first)
		}
	}
	return false
}

// kernelTests is what the kernel harness lists, without the instances of those instruction sets that a machine of the
// project's CI may lack: they are the same tests as AVX2's.
func kernelTests(ctx context.Context, s *subject) (facts, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(s.source, "build", "kernels", "millrace_kernels_test"), "--gtest_list_tests").Output()
	if err != nil {
		return nil, err
	}
	f := facts{}
	suite := ""
	for line := range strings.Lines(string(out)) {
		line, _, _ = strings.Cut(line, "#") // the value of a parameter
		switch name := strings.TrimSpace(line); {
		case name == "":
		case strings.HasSuffix(name, "."):
			suite = name
		case suite != "" && line[0] == ' ' && !rareISA.MatchString(name):
			f.count(suite + name)
		}
	}
	return f, nil
}

// rareISA is the parameter of a test's instance, where it is an instruction set that not every machine has.
var rareISA = regexp.MustCompile(`/(avx512|amx_|amxInt|amxBf|avx2Vnni|avxVnni)\w*$`)
