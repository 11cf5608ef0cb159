package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// facts are what one file of the baseline holds: values by key. A value may be empty.
type facts map[string]string

// separator stands between a key and its value in a file.
const separator = " = "

// read parses the lines of a recorded file.
func read(text []byte) (facts, error) {
	f := facts{}
	for line := range bytes.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), separator)
		if _, twice := f[key]; twice {
			return nil, fmt.Errorf("key %q stands twice", key)
		}
		f[key] = value
	}
	return f, nil
}

// write formats facts as lines in the order of their keys.
func (f facts) write() []byte {
	var text bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(f)) {
		text.WriteString(key)
		if f[key] != "" {
			text.WriteString(separator + f[key])
		}
		text.WriteByte('\n')
	}
	return text.Bytes()
}

// allowances are the reasons of allowed differences, by key. One * in a key stands for any text.
type allowances map[string]string

// now begins the reason of a key that was renamed: "now NEW" or "now NEW: why". NEW must be found; a * in it stands for
// the same text as in the key.
const now = "now "

// compare lists the differences that nothing allows, and the allowances that do not hold. With
// mayGrow, a key that is found but not recorded is no difference.
func compare(recorded, found facts, allowed allowances, mayGrow bool) (wrong []string) {
	used := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(union(recorded, found))) {
		difference := differ(key, recorded, found, mayGrow)
		if difference == "" {
			continue
		}
		pattern, text, reason := allowed.find(key)
		if pattern == "" {
			wrong = append(wrong, difference)
			continue
		}
		used[pattern] = true
		if name, renamed := strings.CutPrefix(reason, now); renamed {
			name, _, _ = strings.Cut(name, ": ")
			name = strings.Replace(name, "*", text, 1)
			if _, there := found[name]; !there {
				wrong = append(wrong, fmt.Sprintf("%s: %s says that it is now %q, which is not there", key, allowedFile, name))
			}
		}
	}
	for _, pattern := range slices.Sorted(maps.Keys(allowed)) {
		switch {
		case !used[pattern]:
			wrong = append(wrong, fmt.Sprintf("%s: %s allows it, but nothing differs", pattern, allowedFile))
		case allowed[pattern] == "":
			wrong = append(wrong, fmt.Sprintf("%s: %s gives no reason", pattern, allowedFile))
		}
	}
	return wrong
}

// differ describes the difference of one key; empty when there is none.
func differ(key string, recorded, found facts, mayGrow bool) string {
	before, was := recorded[key]
	after, is := found[key]
	switch {
	case !was && !mayGrow:
		return fmt.Sprintf("%s: found %q, which is not recorded", key, after)
	case was && !is:
		return fmt.Sprintf("%s: not found, recorded %q", key, before)
	case was && before != after:
		return fmt.Sprintf("%s: found %q, recorded %q", key, after, before)
	}
	return ""
}

// find returns the entry for a key: its own, else that of a pattern, with the text that its * stands for.
func (a allowances) find(key string) (pattern, text, reason string) {
	if reason, ok := a[key]; ok {
		return key, "", reason
	}
	for _, pattern := range slices.Sorted(maps.Keys(a)) {
		if text, ok := match(pattern, key); ok {
			return pattern, text, a[pattern]
		}
	}
	return "", "", ""
}

// match says whether a key has the form of a pattern, and which text its * stands for.
func match(pattern, key string) (text string, ok bool) {
	before, after, star := strings.Cut(pattern, "*")
	if !star || len(key) < len(before)+len(after) || !strings.HasPrefix(key, before) || !strings.HasSuffix(key, after) {
		return "", pattern == key
	}
	return key[len(before) : len(key)-len(after)], true
}

func union(a, b facts) facts {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// allowedFile names the differences that are allowed, by record.
const allowedFile = "allowed.yaml"

// baseline is a directory of recorded files.
type baseline struct {
	dir     string
	allowed map[string]allowances
}

// open reads the allowed differences of a baseline.
func open(dir string) (*baseline, error) {
	b := &baseline{dir: dir}
	text, err := os.ReadFile(filepath.Join(dir, allowedFile))
	if err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(text, &b.allowed); err != nil {
		return nil, fmt.Errorf("%s: %w", allowedFile, err)
	}
	for name := range b.allowed {
		if !slices.ContainsFunc(records, func(r record) bool { return r.name == name }) {
			return nil, fmt.Errorf("%s: found record %q, which does not exist", allowedFile, name)
		}
	}
	return b, nil
}

func (b *baseline) file(name string) string { return filepath.Join(b.dir, name+".txt") }

// compare lists what differs from a recorded file.
func (b *baseline) compare(r *record, found facts) ([]string, error) {
	text, err := os.ReadFile(b.file(r.name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: make it with --record, from the old program", err)
	}
	if err != nil {
		return nil, err
	}
	recorded, err := read(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.file(r.name), err)
	}
	return compare(recorded, found, b.allowed[r.name], r.mayGrow), nil
}
