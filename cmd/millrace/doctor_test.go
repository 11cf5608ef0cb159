package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// doctor runs "millrace doctor --json" and returns the checks by name. It
// listens on free ports unless args say otherwise.
func doctor(t *testing.T, args ...string) (int, report, map[string]check) {
	t.Helper()
	args = append([]string{"doctor", "--json", "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0"}, args...)
	code, stdout, stderr := millrace(t, nil, args...)
	var r report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r), stderr)
	checks := map[string]check{}
	for _, c := range r.Checks {
		checks[c.Name] = c
	}
	return code, r, checks
}

func TestDoctorFindsAMachineThatCanServe(t *testing.T) {
	code, r, checks := doctor(t)
	require.Equal(t, 0, code, "%+v", r.Checks)
	require.True(t, r.OK)
	require.Positive(t, r.Machine.MemoryBytes)
	require.NotNil(t, r.Device)
	require.Contains(t, r.Device.ISAs, r.Device.ISA)
	require.Positive(t, r.Device.Threads)
	require.Equal(t, statusOK, checks["model"].Status, checks["model"].Detail)
	require.Contains(t, checks["model"].Detail, "LlamaForCausalLM, 8 layers")
	require.Equal(t, "4096 tokens, a chat template", checks["tokenizer"].Detail)
}

func TestDoctorWarnsOfAPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	code, r, checks := doctor(t, "--nats-listen", l.Addr().String())
	require.Equal(t, 0, code)
	require.True(t, r.OK)
	require.Equal(t, statusWarn, checks["nats address"].Status)
	require.Equal(t, statusOK, checks["http address"].Status)
}

func TestDoctorFailsOnWhatCannotWork(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for name, args := range map[string][]string{
		"device":         {"--isa", "abacus"},
		"http address":   {"--listen", "192.0.2.1:80"},
		"model":          {"--model", filepath.Dir(file)},
		"data directory": {"--data-dir", filepath.Join(file, "below")},
	} {
		code, r, checks := doctor(t, args...)
		require.Equal(t, 1, code, name)
		require.False(t, r.OK)
		require.Equal(t, statusFail, checks[name].Status, checks[name].Detail)
	}
}

// TestDoctorRefusesWhatServeRefuses beside the weights.
func TestDoctorRefusesWhatServeRefuses(t *testing.T) {
	demo := os.DirFS(absolute(t, "../../models/tiny-chat"))
	for name, c := range map[string]struct {
		file, text string
		check      string
		want       status
		detail     string
	}{
		"tokenizer":    {"tokenizer.json", `{"model": {"type": "none"}}`, "tokenizer", statusFail, "tokenizer.json: "},
		"template":     {"chat_template.jinja", "{% for %}", "tokenizer", statusFail, "chat_template.jinja: "},
		"pooling":      {"modules.json", "{", "model", statusFail, "modules.json: found"},
		"no tokenizer": {"tokenizer.json", "", "tokenizer", statusWarn, "only token ids can be used"},
	} {
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, demo))
		path := filepath.Join(dir, c.file)
		require.NoError(t, os.WriteFile(path, []byte(c.text), 0o600))
		if c.text == "" {
			require.NoError(t, os.Remove(path))
		}
		code, r, checks := doctor(t, "--model", dir)
		require.Equal(t, c.want != statusFail, r.OK, name)
		require.Equal(t, c.want == statusFail, code == 1, name)
		require.Equal(t, c.want, checks[c.check].Status, name)
		require.Contains(t, checks[c.check].Detail, c.detail)
		require.LessOrEqual(t, strings.Count(checks[c.check].Detail, dir), 1, "the file is named once: %s", checks[c.check].Detail)
	}
}

func TestAmountIsForPeople(t *testing.T) {
	for want, n := range map[string]uint64{"0 B": 0, "1023 B": 1023, "1.0 KiB": 1024, "1.5 GiB": 3 << 29, "2048.0 TiB": 1 << 51} {
		require.Equal(t, want, amount(n))
	}
}
