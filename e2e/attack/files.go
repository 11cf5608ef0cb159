package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

var fileAttacks = []attack{
	{"files: a chat template that grows without end", "template", templateBomb},
	{"files: a tokenizer that fails", "tokenizer", tokenizerPanic},
}

// copyModel links the files of a model into a new folder, without those that change.
func copyModel(dir, demo string, change map[string]func(text []byte) ([]byte, error)) (string, error) {
	to := filepath.Join(dir, "model")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return "", err
	}
	from, err := filepath.Abs(demo)
	if err != nil {
		return "", err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		source, copied := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		edit := change[e.Name()]
		if edit == nil {
			if err := os.Symlink(source, copied); err != nil {
				return "", err
			}
			continue
		}
		text, err := os.ReadFile(source)
		if err == nil {
			text, err = edit(text)
		}
		if err == nil {
			err = os.WriteFile(copied, text, 0o600)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", copied, err)
		}
	}
	return to, nil
}

// editJSON changes the fields of a JSON object.
func editJSON(edit func(map[string]any)) func([]byte) ([]byte, error) {
	return func(text []byte) ([]byte, error) {
		var f map[string]any
		if err := json.Unmarshal(text, &f); err != nil {
			return nil, err
		}
		edit(f)
		return json.Marshal(f)
	}
}

// bombs are the parts of a template. The text of the message selects the part that renders.
var bombs = map[string]string{
	"double":  `{% set ns = namespace(s="xxxxxxxx") %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s|length }}`,
	"times":   `{{ ("x" * 1000000000)|length }}`,
	"list":    `{% set ns = namespace(l=[1]) %}{% for i in range(40) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l|length }}`,
	"replace": `{% set ns = namespace(s="xxxxxxxx") %}{% for i in range(12) %}{% set ns.s = ns.s|replace("x", "xxxxxxxx") %}{% endfor %}{{ ns.s|length }}`,
	"output":  `{% for i in range(100000) %}{% for j in range(100000) %}xxxxxxxx{% endfor %}{% endfor %}`,
	"format":  `{{ "%1000000000d"|format(1) }}`,
	"join":    `{% set ns = namespace(s="xxxxxxxx") %}{% for i in range(12) %}{% set ns.s = [ns.s,ns.s,ns.s,ns.s,ns.s,ns.s,ns.s,ns.s]|join(ns.s) %}{% endfor %}{{ ns.s|length }}`,
}

func hostileTemplate(dir, demo string) (string, error) {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(bombs)) {
		fmt.Fprintf(&text, "{%% if messages[0].content == %q %%}%s{%% endif %%}", name, bombs[name])
	}
	edit := editJSON(func(f map[string]any) { f["chat_template"] = text.String() })
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	model, err := copyModel(dir, demo, map[string]func([]byte) ([]byte, error){
		"tokenizer_config.json": edit,
		"chat_template.jinja":   func([]byte) ([]byte, error) { return []byte(text.String()), nil },
	})
	return model, err
}

func templateBomb(ctx context.Context, _ *suite, t *target) (string, error) {
	before, err := t.Usage()
	if err != nil {
		return "", err
	}
	peak := before.Resident
	for _, name := range slices.Sorted(maps.Keys(bombs)) {
		begin := time.Now()
		status, body, err := t.post(ctx, t.keys[attacker], "/v1/chat/completions",
			fields{"model": "tiny-chat", "messages": []fields{{"role": "user", "content": name}}, "max_tokens": 1})
		if err != nil {
			return "", fmt.Errorf("template %s: %w", name, err)
		}
		if status < 400 || status >= 500 {
			return "", fmt.Errorf("template %s: found status %d: %.200s, expected 4xx", name, status, body)
		}
		if took := time.Since(begin); took > 5*time.Second {
			return "", fmt.Errorf("template %s took %s, expected at most 5 s", name, took)
		}
		u, err := t.Usage()
		if err != nil {
			return "", err
		}
		peak = max(peak, u.Resident)
	}
	grown := (peak - before.Resident) >> 20
	if grown > 256 {
		return "", fmt.Errorf("the server grew by %d MiB, expected at most 256", grown)
	}
	return fmt.Sprintf("%d templates: 4xx; the server grew by %d MiB", len(bombs), grown), nil
}

// panickingTokenizer serves a tokenizer without an unknown token and with a truncation.
func panickingTokenizer(dir, demo string) (string, error) {
	return copyModel(dir, demo, map[string]func([]byte) ([]byte, error){
		"tokenizer.json": editJSON(func(f map[string]any) {
			f["truncation"] = fields{"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 9}
			f["padding"] = fields{"strategy": fields{"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": nil, "pad_id": 0,
				"pad_type_id": 0, "pad_token": "!"}
		}),
	})
}

func tokenizerPanic(ctx context.Context, s *suite, t *target) (string, error) {
	const text = "one two three four five six seven eight nine ten"
	var counts [2]int
	plain, err := s.target(ctx, "keys")
	if err != nil {
		return "", err
	}
	for i, x := range []*target{plain, t} {
		status, body, err := x.post(ctx, x.keys[victim], "/tokenize", fields{"model": "tiny-chat", "prompt": text})
		if err != nil {
			return "", err
		}
		var answer struct{ Count int }
		if status == http.StatusOK && json.Unmarshal(body, &answer) == nil {
			counts[i] = answer.Count
		}
	}
	if counts[0] == 0 || counts[0] != counts[1] {
		return "", fmt.Errorf("found %d tokens with a truncation and a padding in tokenizer.json, expected %d as without", counts[1],
			counts[0])
	}
	return fmt.Sprintf("%d tokens, with truncation and padding in the file as without", counts[1]), nil
}

// certificate makes a certificate for the loopback address.
func certificate(dir string) ([]string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	c := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "127.0.0.1"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, &c, &c, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	files := [2]string{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	for i, block := range []*pem.Block{{Type: "CERTIFICATE", Bytes: der}, {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(files[i], pem.EncodeToMemory(block), 0o600); err != nil {
			return nil, err
		}
	}
	return []string{"--tls-cert", files[0], "--tls-key", files[1]}, nil
}
