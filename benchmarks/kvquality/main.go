// Command kvquality measures how well a model predicts a long text as one sequence, for each way to keep keys and values, beside the bytes
// that it keeps of them. It writes a table and a picture. It must not know requests or the scheduler.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/lab/curve"
	"github.com/millrace/millrace/lab/eval"
	"github.com/millrace/millrace/tokenizer"
)

// bin is the number of tokens of a point of the picture.
const bin = 1000

// way is how keys and values of the text are kept.
type way struct {
	name     string
	kv       model.KVType
	eviction model.Eviction
	window   int  // of every layer, without sinks; 0: none
	again    bool // the text is cut into runs of the trained length, each half of the run before it
	drawn    bool
}

// result is a line of the table.
type result struct {
	Name       string    `json:"name"`
	Perplexity float64   `json:"perplexity"`
	TokenBytes uint64    `json:"bytes_per_token"`
	KVBytes    uint64    `json:"kv_bytes"`       // of the sequence at its end
	Nats       []float64 `json:"nats_per_token"` // of each 1,000 tokens
}

type options struct {
	dir, text, out  string
	tokens, trained int
	sinks, threads  int
}

func main() {
	var o options
	flag.StringVar(&o.dir, "model", "models/tiny-chat", "directory of a Llama with rotary embeddings")
	flag.StringVar(&o.text, "text", "", "file of text")
	flag.StringVar(&o.out, "out", "", "prefix of the files to write: PREFIX.json and PREFIX.svg")
	flag.IntVar(&o.tokens, "tokens", 20000, "tokens of the text to predict")
	flag.IntVar(&o.trained, "trained", 384, "length of the sequences that the model was trained on, in tokens: sinks and window together")
	flag.IntVar(&o.sinks, "sinks", 4, "sinks")
	flag.IntVar(&o.threads, "threads", 2, "compute threads")
	flag.Parse()
	if err := run(&o); err != nil {
		fmt.Fprintln(os.Stderr, "kvquality:", err)
		os.Exit(1)
	}
}

func run(o *options) error {
	ids, err := encode(o)
	if err != nil {
		return err
	}
	streaming := model.Eviction{Sinks: o.sinks, Window: o.trained - o.sinks}
	// Parts of the trained length. Between two evictions a token of H2O sees half of model.EvictedTokens more on average.
	heavy := func(part int) model.Eviction {
		return model.Eviction{H2O: true, Heavy: o.trained / part / 2, Recent: o.trained / part / 2}
	}
	alike := model.Eviction{Sinks: o.sinks, Window: o.trained/4 + model.EvictedTokens/2 - o.sinks}
	ways := []way{
		{name: "all keys", drawn: true},
		{name: fmt.Sprintf("the last %d", o.trained), window: o.trained, drawn: true},
		{name: fmt.Sprintf("%d sinks and the last %d", streaming.Sinks, streaming.Window), eviction: streaming, drawn: true},
		{name: fmt.Sprintf("%d heavy and the last %d", heavy(1).Heavy, heavy(1).Recent), eviction: heavy(1), drawn: true},
		{name: fmt.Sprintf("computed again every %d", o.trained/2), again: true, drawn: true},
		{name: "sinks, int8", kv: model.KVInt8, eviction: streaming},
		{name: "sinks, int4", kv: model.KVInt4, eviction: streaming},
		{name: "computed again, int8", kv: model.KVInt8, again: true},
		{name: "computed again, int4", kv: model.KVInt4, again: true},
		{name: "computed again, kivi", kv: model.KVKivi, again: true},
		{name: fmt.Sprintf("computed again, %d heavy and the last %d", heavy(2).Heavy, heavy(2).Recent), eviction: heavy(2), again: true},
		{name: fmt.Sprintf("computed again, %d heavy and the last %d", heavy(4).Heavy, heavy(4).Recent), eviction: heavy(4), again: true},
		{name: fmt.Sprintf("computed again, %d sinks and the last %d", alike.Sinks, alike.Window), eviction: alike, again: true},
	}
	picture := curve.Picture{
		Title: fmt.Sprintf("%s: a text of %d tokens as one sequence", filepath.Base(o.dir), len(ids)-1),
		X:     "tokens", Y: "nats per token",
	}
	var results []result
	for i := range ways {
		r, err := measure(o, &ways[i], ids)
		if err != nil {
			return fmt.Errorf("%s: %w", ways[i].name, err)
		}
		fmt.Fprintf(os.Stdout, "%-44s perplexity %9.3f  KV %6d bytes/token %9d bytes\n", r.Name, r.Perplexity, r.TokenBytes, r.KVBytes)
		results = append(results, r)
		if ways[i].drawn {
			line := curve.Series{Name: fmt.Sprintf("%s: perplexity %.2f, KV %.2f MB", r.Name, r.Perplexity, float64(r.KVBytes)/1e6)}
			for k, nats := range r.Nats {
				line.Points = append(line.Points, curve.Point{X: float64((k + 1) * bin), Y: nats})
			}
			picture.Series = append(picture.Series, line)
		}
	}
	raw, err := json.MarshalIndent(results, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(o.out+".json", append(raw, '\n'), 0o600); err != nil {
		return err
	}
	return picture.WriteFile(o.out + ".svg")
}

// encode returns the first tokens of the text, and one more that is only predicted from.
func encode(o *options) ([]int32, error) {
	raw, err := os.ReadFile(o.text)
	if err != nil {
		return nil, err
	}
	t, err := tokenizer.Load(o.dir)
	if err != nil {
		return nil, err
	}
	defer t.Close() //nolint:errcheck // nothing was written
	ids, err := t.Encode(string(raw), true)
	if err != nil {
		return nil, err
	}
	if len(ids) <= o.tokens {
		return nil, fmt.Errorf("%s: found %d tokens, expected more than %d", o.text, len(ids), o.tokens)
	}
	return ids[:o.tokens+1], nil
}

// measure predicts the text with one way.
func measure(o *options, w *way, ids []int32) (result, error) {
	dir, err := os.MkdirTemp("", "kvquality")
	if err != nil {
		return result{}, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // of the system's temporary files
	if err := variant(o.dir, dir, len(ids), w.window); err != nil {
		return result{}, err
	}
	m, err := compute.Open(compute.Options{
		Dir: dir, Device: device.Options{Backend: "cpu", Threads: o.threads}, KV: w.kv, Eviction: w.eviction,
		MaxRows: eval.StepRows, MaxOutputs: eval.StepRows, KVMemory: 256 << 20, NoPacked: true,
	})
	if err != nil {
		return result{}, err
	}
	defer m.Close()
	windows := eval.Windows{Context: len(ids) + 1, Stride: 1}
	if w.again {
		windows = eval.Windows{Context: o.trained, Stride: o.trained / 2}
	}
	score, err := eval.Perplexity(m, ids, windows)
	if err != nil {
		return result{}, err
	}
	r := result{Name: w.name, Perplexity: score.Perplexity, TokenBytes: m.Engine().Info().SlabBytes / device.SlabTokens}
	r.KVBytes = m.Engine().Info().SlabBytes * uint64(slabs(w, m, len(ids)-1, o.trained))
	for at := 0; at+bin <= len(score.Each); at += bin {
		sum := 0.0
		for _, nats := range score.Each[at : at+bin] {
			sum += nats
		}
		r.Nats = append(r.Nats, math.Round(sum/bin*1e4)/1e4)
	}
	return r, nil
}

// slabs is the number of slabs that a decoding sequence of some tokens has.
func slabs(w *way, m *compute.Model, tokens, trained int) int {
	p := m.Program
	if w.again {
		tokens = trained
	}
	if p.Window() > 0 {
		return min(device.Slabs(tokens), p.SinkSlabs(device.SlabTokens)+kvmgr.LiveSlabs(p.Window(), 1, device.SlabTokens))
	}
	return m.Engine().Slabs(tokens)
}

// variant makes a directory with the model's tensors and another configuration: at least as many positions as the text has tokens, unless
// there is a window of every layer, which makes a Mistral of it. Sinks extend the positions by themselves.
func variant(from, to string, positions, window int) error {
	raw, err := os.ReadFile(filepath.Join(from, "config.json"))
	if err != nil {
		return err
	}
	var config map[string]any
	if err := json.Unmarshal(raw, &config); err != nil {
		return err
	}
	config["max_position_embeddings"] = positions
	if window > 0 {
		config["architectures"], config["sliding_window"] = []string{"MistralForCausalLM"}, window
	}
	if raw, err = json.Marshal(config); err != nil {
		return err
	}
	tensors, err := filepath.Abs(filepath.Join(from, "model.safetensors"))
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(to, "config.json"), raw, 0o600),
		os.Symlink(tensors, filepath.Join(to, "model.safetensors")))
}
