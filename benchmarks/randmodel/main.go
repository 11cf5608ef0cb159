// Command randmodel writes a Llama checkpoint of random weights (about 1.1
// billion parameters, as TinyLlama) for benchmarks: run times do not depend
// on the values of weights. It must not know how a program loads or serves them.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
)

type shape struct {
	Layers, Hidden, Heads, KVHeads, FFN, Vocab, Context int
}

type tensor struct {
	name string
	dims []int
	norm bool // a norm's weight: ones
}

func main() {
	dir := flag.String("out", "", "directory to write")
	s := shape{Context: 16384}
	flag.IntVar(&s.Layers, "layers", 22, "decoder layers")
	flag.IntVar(&s.Hidden, "hidden", 2048, "hidden size")
	flag.IntVar(&s.Heads, "heads", 32, "query heads")
	flag.IntVar(&s.KVHeads, "kv-heads", 4, "key/value heads")
	flag.IntVar(&s.FFN, "ffn", 5632, "intermediate size")
	flag.IntVar(&s.Vocab, "vocab", 32000, "vocabulary")
	tokenizer := flag.Bool("tokenizer", false, "write a tokenizer too, of --vocab ids")
	flag.Parse()
	if err := write(*dir, s, *tokenizer); err != nil {
		fmt.Fprintln(os.Stderr, "randmodel:", err)
		os.Exit(1)
	}
}

func write(dir string, s shape, tokenizer bool) error {
	if dir == "" {
		return fmt.Errorf("--out: found nothing, expected a directory")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if tokenizer {
		if err := writeTokenizer(dir, s.Vocab); err != nil {
			return err
		}
	}
	if err := writeWeights(filepath.Join(dir, "model.safetensors"), tensors(s)); err != nil {
		return err
	}
	cfg, err := json.MarshalIndent(map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "torch_dtype": "bfloat16",
		"hidden_size": s.Hidden, "num_hidden_layers": s.Layers, "num_attention_heads": s.Heads,
		"num_key_value_heads": s.KVHeads, "intermediate_size": s.FFN, "vocab_size": s.Vocab,
		"max_position_embeddings": s.Context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
		"tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), cfg, 0o644) // last: it marks the directory as whole
}

func tensors(s shape) []tensor {
	kv := s.Hidden / s.Heads * s.KVHeads
	list := []tensor{{name: "model.embed_tokens.weight", dims: []int{s.Vocab, s.Hidden}}}
	for i := range s.Layers {
		add := func(name string, norm bool, dims ...int) {
			list = append(list, tensor{fmt.Sprintf("model.layers.%d.%s.weight", i, name), dims, norm})
		}
		add("input_layernorm", true, s.Hidden)
		add("self_attn.q_proj", false, s.Hidden, s.Hidden)
		add("self_attn.k_proj", false, kv, s.Hidden)
		add("self_attn.v_proj", false, kv, s.Hidden)
		add("self_attn.o_proj", false, s.Hidden, s.Hidden)
		add("post_attention_layernorm", true, s.Hidden)
		add("mlp.gate_proj", false, s.FFN, s.Hidden)
		add("mlp.up_proj", false, s.FFN, s.Hidden)
		add("mlp.down_proj", false, s.Hidden, s.FFN)
	}
	return append(list, tensor{"model.norm.weight", []int{s.Hidden}, true},
		tensor{name: "lm_head.weight", dims: []int{s.Vocab, s.Hidden}})
}

func writeWeights(path string, list []tensor) error {
	header := map[string]any{}
	at := 0
	for _, t := range list {
		end := at + 2*elements(t)
		header[t.name] = map[string]any{"dtype": "BF16", "shape": t.dims, "data_offsets": []int{at, end}}
		at = end
	}
	head, err := json.Marshal(header)
	if err != nil {
		return err
	}
	for len(head)%8 != 0 {
		head = append(head, ' ')
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // checked by Flush and Sync
	w := bufio.NewWriterSize(f, 1<<20)
	if err := binary.Write(w, binary.LittleEndian, uint64(len(head))); err != nil {
		return err
	}
	if _, err := w.Write(head); err != nil {
		return err
	}
	noise := randomBF16()
	for i, t := range list {
		if err := writeTensor(w, t, noise, i); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Sync()
}

// writeTensor writes ones, or a run of the noise from a place of its own.
func writeTensor(w io.Writer, t tensor, noise []byte, seed int) error {
	n := 2 * elements(t)
	if t.norm {
		ones := make([]byte, n)
		for i := 0; i < n; i += 2 {
			binary.LittleEndian.PutUint16(ones[i:], 0x3f80)
		}
		_, err := w.Write(ones)
		return err
	}
	at := (seed * 7919 * 2) % len(noise)
	for n > 0 {
		k := min(n, len(noise)-at)
		if _, err := w.Write(noise[at : at+k]); err != nil {
			return err
		}
		n, at = n-k, 0
	}
	return nil
}

func elements(t tensor) int {
	n := 1
	for _, d := range t.dims {
		n *= d
	}
	return n
}

// randomBF16 is 64 MiB of normal values with standard deviation 0.02: of a
// length that no row has, so that rows differ.
func randomBF16() []byte {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 2*(1<<25-39))
	for i := 0; i < len(b); i += 2 {
		bits := math.Float32bits(float32(r.NormFloat64() * 0.02))
		binary.LittleEndian.PutUint16(b[i:], uint16(bits>>16))
	}
	return b
}
