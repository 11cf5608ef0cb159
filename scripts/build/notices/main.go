// Command notices prints the licenses of everything that is in bin/millrace: the Go modules, the Rust crates of
// tokenizer/jinja, and the npm packages of its pages, with their license and notice files, word for word.
// It must not know what a dependency is for.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// part is one module or crate.
type part struct {
	kind, name, version string
	dir                 string // or the license itself
	license             string // SPDX expression, if the package names one
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer) error {
	modules, err := goModules(ctx)
	if err != nil {
		return err
	}
	crates, err := rustCrates(ctx)
	if err != nil {
		return err
	}
	const pages = "api/web/dist/licenses.md" // which the build of the pages writes
	packages, err := os.ReadFile(pages)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "Millrace contains the software below: %d Go modules, %d Rust crates and %d npm packages.\n",
		len(modules), len(crates), len(npmPackage.FindAll(packages, -1)))
	var errs []error
	for _, p := range append(modules, crates...) {
		errs = append(errs, p.write(&out))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Fprintf(&out, "\n%s\nnpm packages of the pages, from %s\n\n%s\n", strings.Repeat("=", 80), pages, bytes.TrimSpace(packages))
	_, err = out.WriteTo(w)
	return err
}

// goModules are the modules of the packages that cmd/millrace imports.
func goModules(ctx context.Context) ([]part, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-deps", "-f",
		"{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}{{end}}", "./cmd/millrace").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines)
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	dir := strings.TrimSpace(string(root))
	all := []part{{kind: "Go", name: "standard library", version: runtime.Version(), dir: filepath.Join(dir, "LICENSE")}}
	for _, line := range slices.Compact(lines) {
		if fields := strings.Split(line, "\t"); len(fields) == 3 {
			all = append(all, part{kind: "Go module", name: fields[0], version: fields[1], dir: fields[2]})
		}
	}
	return all, nil
}

// rustCrates are the crates that tokenizer/jinja is linked from, without those that only build it.
func rustCrates(ctx context.Context) ([]part, error) {
	const tree = "tokenizer/jinja/Cargo.toml"
	linked, err := exec.CommandContext(ctx, "cargo", "tree", "--manifest-path", tree, "--locked", "--edges", "normal",
		"--prefix", "none", "--format", "{p}").Output()
	if err != nil {
		return nil, fmt.Errorf("cargo tree: %w", err)
	}
	out, err := exec.CommandContext(ctx, "cargo", "metadata", "--manifest-path", tree, "--locked", "--format-version", "1").Output()
	if err != nil {
		return nil, fmt.Errorf("cargo metadata: %w", err)
	}
	var metadata struct {
		Packages []struct {
			Name, Version, License string
			Source                 string // "" for our own and for the build copy of the tokenizers module
			ManifestPath           string `json:"manifest_path"`
		} `json:"packages"`
	}
	if err := json.Unmarshal(out, &metadata); err != nil {
		return nil, fmt.Errorf("cargo metadata: %w", err)
	}
	var all []part
	for _, p := range metadata.Packages {
		if p.Source != "" && bytes.Contains(linked, []byte(p.Name+" v"+p.Version)) {
			all = append(all, part{kind: "Rust crate", name: p.Name, version: p.Version, dir: filepath.Dir(p.ManifestPath),
				license: p.License})
		}
	}
	return all, nil
}

// npmPackage is the heading of a package in the list that Vite writes.
var npmPackage = regexp.MustCompile(`(?m)^## .* - \d\S* \(.*\)$`)

var licenseFile = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|notice|copyright)([-_.](md|txt|rst|[a-z0-9-]+))?$`)

func (p part) write(out *bytes.Buffer) error {
	fmt.Fprintf(out, "\n%s\n%s %s %s\n", strings.Repeat("=", 80), p.kind, p.name, p.version)
	if p.license != "" {
		fmt.Fprintf(out, "License: %s\n", p.license)
	}
	found := p.license != ""
	err := filepath.WalkDir(p.dir, func(path string, entry fs.DirEntry, err error) error { // C sources have folders of their own
		if err != nil || entry.IsDir() || !licenseFile.MatchString(entry.Name()) {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(p.dir, path)
		found = true
		fmt.Fprintf(out, "\n--- %s\n%s\n", name, bytes.TrimSpace(text))
		return err
	})
	if err != nil {
		return fmt.Errorf("%s %s: %w", p.name, p.version, err)
	}
	if !found {
		return fmt.Errorf("%s %s: no license file in %s, and no license named", p.name, p.version, p.dir)
	}
	return nil
}
