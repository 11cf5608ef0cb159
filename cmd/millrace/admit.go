package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/compute/weights"
	"github.com/millrace/millrace/models/hub"
	"github.com/millrace/millrace/tokenizer"
)

// admit says what a model is and needs, by the folder of its config.json or a file with the begin of its GGUF file. The error of one
// that is not served says what is.
func admit(n hub.Name, path string) (about string, err error) {
	load := family.LoadGGUFBegin
	if n.Variant == "" {
		load = family.LoadConfig
	}
	var program *model.Program
	c, err := load(path)
	if err == nil {
		program, err = family.Build(c, nil)
	}
	if wrong, ok := errors.AsType[*weights.FormatError](err); ok {
		if wrong.Cut() { // of a GGUF file that has more before its data: serve decides
			return fmt.Sprintf("%s: the begin of the file does not show what it needs", n), nil
		}
		return "", fmt.Errorf("%s is not served, and is not downloaded: %s: found %s, expected %s", n, cmp.Or(wrong.Name, "config.json"),
			wrong.Found, wrong.Expected)
	}
	if err == nil && n.Variant != "" {
		err = tokenizer.CheckGGUFBegin(path)
	}
	if err != nil {
		return "", fmt.Errorf("%s is not served, and is not downloaded: %w", n, err)
	}
	whole, kv := sim.WeightBytes(program), 1000*program.KVBytesPerToken(model.BF16Sizes())
	less, err := model.ParseWeights("int8")
	if err == nil {
		err = program.SetWeights(less)
	}
	if err != nil {
		return "", err
	}
	shortened := ""
	if c.Shortened != "" {
		shortened = " (" + c.Shortened + ")"
	}
	return fmt.Sprintf("%s: %s, %d layers, up to %d tokens%s. It needs %s of memory (%s with --weights int8), and %s for the KV cache of 1000 tokens. %s are available.",
		n, c.Architecture, c.Layers, c.MaxPositions, shortened, amount(whole), amount(sim.WeightBytes(program)), amount(kv),
		amount(probe(os.DirFS("/")).AvailableBytes)), nil
}
