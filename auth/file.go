package auth

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/millrace/millrace/compute/sched"
)

// ErrFile is a file of keys that cannot be used.
var ErrFile = errors.New("invalid file of API keys")

const hashPrefix = "sha256:"

// Entry is a key in the file, which is a YAML list of them. What is 0 has no
// limit.
type Entry struct {
	ID     string `yaml:"id"`
	Tenant string `yaml:"tenant"` // keys of a tenant share its place in the queue
	Hash   string `yaml:"hash"`   // "sha256:" and the hexadecimal digest of the key

	RequestsPerMinute int `yaml:"requests-per-minute,omitempty"`
	TokensPerMinute   int `yaml:"tokens-per-minute,omitempty"` // prompt and answer
	Concurrent        int `yaml:"concurrent,omitempty"`        // requests

	Weight   int      `yaml:"weight,omitempty"`   // of the tenant, 1 to 1000; 0: 1
	Priority int      `yaml:"priority,omitempty"` // the best (lowest) that its requests get
	Models   []string `yaml:"models,omitempty"`   // that it may use; none named: all
}

// parseFile reads and checks a file. Its errors name the entry, never what was
// found in a hash: it might be a key.
func parseFile(text []byte) (map[string]*Entry, error) {
	var entries []Entry
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&entries); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: expected a list of keys: %w", ErrFile, err)
	}
	if len(entries) == 0 { // as a file is while it is written
		return nil, fmt.Errorf("%w: expected at least one key", ErrFile)
	}
	keys, weights := make(map[string]*Entry, len(entries)), map[string]int{}
	for i := range entries {
		e := &entries[i]
		if err := e.Check(); err != nil {
			return nil, fmt.Errorf("%w: key %d (id %q): %w", ErrFile, i+1, e.ID, err)
		}
		e.Weight = max(e.Weight, 1)
		if w, ok := weights[e.Tenant]; ok && w != e.Weight {
			return nil, fmt.Errorf("%w: key %d (id %q): weight: found %d, expected %d as of tenant %q before", ErrFile, i+1, e.ID, e.Weight,
				w, e.Tenant)
		}
		if keys[e.ID] != nil {
			return nil, fmt.Errorf("%w: key %d (id %q): id: expected one that no other key has", ErrFile, i+1, e.ID)
		}
		keys[e.ID], weights[e.Tenant] = e, e.Weight
	}
	return keys, nil
}

// Check says what is wrong with an entry, beginning with the field.
func (e *Entry) Check() error {
	if id, err := hex.DecodeString(e.ID); err != nil || len(id) != idLength/2 || hex.EncodeToString(id) != e.ID {
		return fmt.Errorf("id: expected %d hexadecimal digits in lower case", idLength)
	}
	if e.Tenant == "" {
		return errors.New("tenant: expected a name")
	}
	if _, err := e.digest(); err != nil {
		return err
	}
	for _, f := range []struct {
		name       string
		value, max int
	}{
		{"requests-per-minute", e.RequestsPerMinute, math.MaxInt32},
		{"tokens-per-minute", e.TokensPerMinute, math.MaxInt32},
		{"concurrent", e.Concurrent, math.MaxInt32},
		{"weight", e.Weight, sched.MaxWeight},
	} {
		if f.value < 0 || f.value > f.max {
			return fmt.Errorf("%s: found %d, expected 0 to %d", f.name, f.value, f.max)
		}
	}
	if e.Priority < math.MinInt32 || e.Priority > math.MaxInt32 {
		return fmt.Errorf("priority: found %d, expected %d to %d", e.Priority, math.MinInt32, math.MaxInt32)
	}
	if slices.Contains(e.Models, "") {
		return errors.New("models: found an empty name")
	}
	return nil
}

// digest is the hash of the key.
func (e *Entry) digest() ([]byte, error) {
	digest, err := hex.DecodeString(string(bytes.TrimPrefix([]byte(e.Hash), []byte(hashPrefix))))
	if err != nil || len(digest) != 32 || len(e.Hash) != len(hashPrefix)+2*len(digest) {
		return nil, fmt.Errorf("hash: expected %q and 64 hexadecimal digits, found %d characters that are none", hashPrefix, len(e.Hash))
	}
	return digest, nil
}

// Line is the entry as a line of the file.
func (e *Entry) Line() (string, error) {
	var node yaml.Node
	if err := node.Encode([]*Entry{e}); err != nil {
		return "", err
	}
	for _, n := range node.Content {
		n.Style = yaml.FlowStyle
	}
	text, err := yaml.Marshal(&node)
	return string(text), err
}
