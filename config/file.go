package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"
)

// readFile finds the settings of the file that --config names, or of the user's file if there is one.
func readFile(cmd *cobra.Command, environ []string, known map[string]bool) ([]setting, error) {
	f := cmd.Flags().Lookup(FileFlag)
	if f == nil {
		return nil, nil
	}
	path := f.Value.String()
	if path == "" {
		return readUserFile(cmd, userFile(environ), known)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, Usagef("%w", err)
	}
	return parseFile(path, text, known)
}

// readUserFile finds the settings of the user's file; none without one.
func readUserFile(cmd *cobra.Command, path string, known map[string]bool) ([]setting, error) {
	if here, err := os.Stat(FileName); err == nil && !isFile(here, path) {
		cmd.PrintErrf("%s: found in this folder, and not read; --config %s reads it\n", FileName, FileName)
	}
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil: // as for a home that is another user's
		cmd.PrintErrf("%v: no settings are read from it\n", err)
		return nil, nil
	}
	return parseFile(path, text, known)
}

// userFile is the path of the user's file; "" for a user without a home.
func userFile(environ []string) string {
	folder, home := "", ""
	for _, variable := range environ {
		switch name, value, _ := strings.Cut(variable, "="); name {
		case "XDG_CONFIG_HOME":
			folder = value
		case "HOME":
			home = value
		}
	}
	switch {
	case filepath.IsAbs(folder): // the specification of XDG ignores others
		return filepath.Join(folder, "millrace", FileName)
	case filepath.IsAbs(home):
		return filepath.Join(home, ".config", "millrace", FileName)
	}
	return ""
}

func isFile(file fs.FileInfo, path string) bool {
	other, err := os.Stat(path)
	return err == nil && os.SameFile(file, other)
}

// parseFile reads a flat YAML mapping. path is for messages only.
func parseFile(path string, text []byte, known map[string]bool) ([]setting, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, Usagef("%s: %w", path, err)
	}
	if len(doc.Content) == 0 { // empty, or comments only
		return nil, nil
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, Usagef("%s:%d: found %s, expected a mapping of settings", path, top.Line, kind(top))
	}

	var settings []setting
	seen := map[string]bool{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, node := top.Content[i], top.Content[i+1]
		origin := fmt.Sprintf("%s:%d: %s", path, key.Line, key.Value)
		switch {
		case key.Value == FileFlag:
			return nil, Usagef("%s: a configuration file cannot name another one", origin)
		case !known[key.Value]:
			return nil, Usagef("%s:%d: unknown key %q%s", path, key.Line, key.Value, suggest(key.Value, known))
		case seen[key.Value]:
			return nil, Usagef("%s: set twice", origin)
		}
		seen[key.Value] = true
		value, err := scalar(node)
		if err != nil {
			return nil, Usagef("%s: %w", origin, err)
		}
		settings = append(settings, setting{flag: key.Value, value: value, origin: origin})
	}
	return settings, nil
}

// scalar is the text that a flag would be given: a scalar as it is written, a
// list of scalars with commas.
func scalar(node *yaml.Node) (string, error) {
	switch node.Kind {
	case yaml.AliasNode:
		return scalar(node.Alias)
	case yaml.ScalarNode:
		if node.Tag == "!!null" {
			return "", errors.New("no value; leave the key out for the default")
		}
		return node.Value, nil
	case yaml.SequenceNode:
		texts := make([]string, len(node.Content))
		for i, n := range node.Content {
			if n.Kind != yaml.ScalarNode {
				return "", fmt.Errorf("found %s in a list, expected a scalar", kind(n))
			}
			texts[i] = n.Value
		}
		return strings.Join(texts, ","), nil
	default:
		return "", fmt.Errorf("found %s, expected a scalar", kind(node))
	}
}

func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	default:
		return "a scalar"
	}
}
