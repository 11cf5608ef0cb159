package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"gopkg.in/yaml.v3"
)

// readFile finds the settings of the file that --config names, or of
// DefaultFile if there is one.
func readFile(flags *pflag.FlagSet, known map[string]bool) ([]setting, error) {
	f := flags.Lookup(FileFlag)
	if f == nil {
		return nil, nil
	}
	path := f.Value.String()
	if path == "" {
		path = DefaultFile
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !f.Changed {
		return nil, nil
	}
	if err != nil {
		return nil, Usagef("%w", err)
	}
	return parseFile(path, text, known)
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
			return nil, Usagef("%s:%d: unknown key %q%s", path, key.Line, key.Value, hint(key.Value, key.Value, known))
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
