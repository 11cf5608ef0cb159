package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/kvmgr"
)

// These tests run hybrid models of testdata on the kernels, with and without snapshots of their states.

// openHybrid opens a model of testdata with a longer context.
func openHybrid(t *testing.T, name, backend string) *compute.Model {
	t.Helper()
	dir, from := t.TempDir(), filepath.Join("../../testdata/models", name)
	raw, err := os.ReadFile(filepath.Join(from, "config.json"))
	require.NoError(t, err)
	var config map[string]any
	require.NoError(t, json.Unmarshal(raw, &config))
	config["max_position_embeddings"] = 1024
	if _, ok := config["max_seq_len"]; ok { // YOCO's name
		config["max_seq_len"] = 1024
	}
	raw, err = json.Marshal(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600))
	tensors, err := os.ReadFile(filepath.Join(from, "model.safetensors"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), tensors, 0o600))
	m, err := compute.Open(compute.Options{
		Dir: dir, Device: device.Options{Backend: backend, Threads: 1}, MaxRows: modelRows, MaxOutputs: 8, KVMemory: 4 << 20,
		NoPacked: true,
	})
	require.NoError(t, err)
	t.Cleanup(m.Close)
	require.True(t, m.KV().Snapshots())
	return m
}

// unshared is a model whose sequences all begin at their first token.
type unshared struct{ *compute.Model }

func (m unshared) KV() kvmgr.Spec {
	kv := m.Model.KV()
	kv.Shares = false
	return kv
}

// TestHybridsContinueAtSnapshotsWithTheTokensOfColdPrompts: the next turn of a conversation, and a prompt that begins as another one.
func TestHybridsContinueAtSnapshotsWithTheTokensOfColdPrompts(t *testing.T) {
	for _, name := range []string{"lfm2", "qwen3_5", "qwen3-next", "granite-hybrid", "mamba2", "yoco-retention"} {
		for _, backend := range []string{"cpu", "ref"} {
			t.Run(name+"/"+backend, func(t *testing.T) {
				m := openHybrid(t, name, backend)
				c, plain := testConfig(t, nil), testConfig(t, nil)
				modelConfig(&c, m, true)
				modelConfig(&plain, openHybrid(t, name, backend), true)
				plain.Model = unshared{plain.Model.(*compute.Model)}
				p, cold := start(t, c), start(t, plain)
				same := func(id string, prompt []int32) (tokens []int32, cached int) {
					want, none := answer(t, cold, tokensRequest(id, prompt, 40))
					require.Zero(t, none.Usage.CachedTokens)
					got, last := answer(t, p, tokensRequest(id, prompt, 40))
					require.Equal(t, want, got, id)
					return got, last.Usage.CachedTokens
				}
				prompt := drawn(1, 150)
				first, cached := same("first", prompt)
				require.Zero(t, cached)
				turn := append(slices.Concat(prompt, first), drawn(2, 20)...)
				_, cached = same("next turn", turn)
				require.GreaterOrEqual(t, cached, 176, "up to the answer's last whole slab at least")
				_, cached = same("other question", append(slices.Clone(prompt[:140]), drawn(3, 30)...))
				require.GreaterOrEqual(t, cached, 64)
				requireFree(t, p)
			})
		}
	}
}

// TestHybridsContinueFromTheDiskWithTheTokensOfColdPrompts: processes one after the other in a directory, of which the last one finds it
// damaged. No layer of mamba2 has keys, so its slabs of tokens are not stored.
func TestHybridsContinueFromTheDiskWithTheTokensOfColdPrompts(t *testing.T) {
	for _, name := range []string{"lfm2", "qwen3_5", "mamba2", "yoco-retention"} {
		for _, backend := range []string{"cpu", "ref"} {
			t.Run(name+"/"+backend, func(t *testing.T) {
				dir := t.TempDir()
				process := func(disk string) (p *Node, end func()) {
					c := testConfig(t, nil)
					modelConfig(&c, openHybrid(t, name, backend), true)
					c.KVDisk = KVDisk{Dir: disk, Size: 16 << 20}
					c.admitPatience = time.Second // a machine that is short of processors loses no snapshot
					if disk == "" {
						c.Model = unshared{c.Model.(*compute.Model)}
					}
					return startAndEnd(t, c)
				}
				cold, _ := process("")
				same := func(p *Node, id string, prompt []int32, cached int) []int32 {
					t.Helper()
					want, _ := answer(t, cold, tokensRequest(id, prompt, 40))
					got, last := answer(t, p, tokensRequest(id, prompt, 40))
					require.Equal(t, want, got)
					require.Equal(t, cached, last.Usage.CachedTokens, id)
					return got
				}
				p, end := process(dir)
				prompt := drawn(1, 150)
				turn := append(slices.Concat(prompt, same(p, "first", prompt, 0)), drawn(2, 20)...)
				end()
				p, end = process(dir)
				same(p, "next turn", turn, 150+39)
				same(p, "again", prompt, 128)
				require.Zero(t, p.sum(t, "millrace_kv_disk_errors_total"))
				require.Positive(t, p.sum(t, "millrace_kv_disk_hits_total"))
				state := p.cfg.Model.KV().Head()
				if name == "mamba2" {
					require.Zero(t, p.sum(t, "millrace_kv_disk_hits_total")%state)
				}
				requireFree(t, p)
				end()
				names, err := filepath.Glob(filepath.Join(dir, "*.kv"))
				require.NoError(t, err)
				require.Len(t, names, 1)
				raw, err := os.ReadFile(names[0])
				require.NoError(t, err)
				for at := 5000; at < len(raw); at += 3001 {
					raw[at] ^= 4
				}
				require.NoError(t, os.WriteFile(names[0], raw, 0o600))
				p, _ = process(dir)
				same(p, "damaged", turn, 0)
				requireFree(t, p)
			})
		}
	}
}
