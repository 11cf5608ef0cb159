package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// otherModel makes a model with the name of the suite's model that differs in one thing.
func (s *suite) otherModel(what string, change func(from, to string) error) (string, error) {
	from, err := filepath.Abs(s.model)
	if err != nil {
		return "", err
	}
	to := filepath.Join(s.dir, "models", what, filepath.Base(from))
	if err := os.MkdirAll(to, 0o755); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(to, e.Name()), data, 0o600); err != nil {
			return "", err
		}
	}
	return to, change(from, to)
}

// otherWeights changes every weight by up to an eighth. The checkpoint has the same shape and gives
// other answers.
func otherWeights(from, to string) error {
	const file = "model.safetensors"
	data, err := os.ReadFile(filepath.Join(from, file))
	if err != nil {
		return err
	}
	const lengthBytes = 8
	if len(data) < lengthBytes {
		return fmt.Errorf("%s: found %d bytes, expected a header", file, len(data))
	}
	begin := lengthBytes + binary.LittleEndian.Uint64(data)
	if begin > uint64(len(data)) {
		return fmt.Errorf("%s: found a header of %d bytes in %d", file, begin, len(data))
	}
	var header map[string]struct{ Dtype string }
	if err := json.Unmarshal(bytes.TrimSpace(data[lengthBytes:begin]), &header); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for name, tensor := range header {
		if name != "__metadata__" && tensor.Dtype != "BF16" {
			return fmt.Errorf("%s: %s: found type %s, expected BF16", file, name, tensor.Dtype)
		}
	}
	const eighth = 1 << 4 // bit of the significand, which is the low 7 bits
	for i := begin; i < uint64(len(data)); i += 2 {
		data[i] ^= eighth
	}
	return os.WriteFile(filepath.Join(to, file), data, 0o600)
}

// otherTemplate changes the beginning of the chat template.
func otherTemplate(from, to string) error {
	const file, begin = "tokenizer_config.json", `{{ '<|bos|>' }}`
	data, err := os.ReadFile(filepath.Join(from, file))
	if err != nil {
		return err
	}
	text := strings.Replace(string(data), begin, begin+`{{ '<|system|>You tell stories.<|end|>' }}`, 1)
	if text == string(data) {
		return fmt.Errorf("%s: expected a chat template that begins with %s", file, begin)
	}
	return os.WriteFile(filepath.Join(to, file), []byte(text), 0o600)
}

// toolsTemplate replaces the chat template by one with tools (in the format of Hermes) and reasoning.
func toolsTemplate(_, to string) error {
	const template = `{{ '<|bos|>' }}{% if tools %}{{ '<|system|>' }}{% for tool in tools %}{{ tool | tojson }} {% endfor %}` +
		`{{ 'Answer with <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call>.<|end|>' }}{% endif %}` +
		`{% for message in messages %}{{ '<|' + message['role'] + '|>' }}` +
		`{% if message['reasoning_content'] %}{{ '<think>' + message['reasoning_content'] + '</think>' }}{% endif %}` +
		`{{ message['content'] + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}`
	path := filepath.Join(to, "tokenizer_config.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var config map[string]any
	if err := json.Unmarshal(data, &config); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	config["chat_template"] = template
	if data, err = json.Marshal(config); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}
