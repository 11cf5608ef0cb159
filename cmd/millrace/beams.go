package main

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/kvmgr"
)

// beamFlags are generate's flags of a beam search.
type beamFlags struct {
	sample.BeamParams // Width 0: none
	early             string
}

func (b *beamFlags) register(f *pflag.FlagSet) {
	f.IntVar(&b.Width, "beams", 0, "search with so many beams and print the best answer at the end (0: sample)")
	f.Float64Var(&b.LengthPenalty, "length-penalty", 1, "with --beams: an answer's score is its log probability / length^this")
	f.StringVar(&b.early, "early-stopping", "false", "with --beams, as in transformers: false, true or never")
	f.Lookup("early-stopping").NoOptDefVal = "true"
}

// check reads early-stopping and refuses what a beam search does not obey.
func (b *beamFlags) check(f *pflag.FlagSet) error {
	if b.Width == 0 {
		for _, name := range []string{"length-penalty", "early-stopping"} {
			if f.Changed(name) {
				return config.Usagef("--%s: only with --beams", name)
			}
		}
		return nil
	}
	switch b.early {
	case "false":
	case "true":
		b.Early = sample.StopAtOnce
	case "never":
		b.Early = sample.StopNever
	default:
		return config.Usagef("--early-stopping: found %q, expected false, true or never", b.early)
	}
	if err := b.Validate(); err != nil {
		return config.Usagef("%v", err)
	}
	for _, name := range []string{"temperature", "top-k", "top-p", "min-p", "repetition-penalty", "stop"} {
		if flag := f.Lookup(name); flag.Changed && flag.Value.String() != flag.DefValue {
			return config.Usagef("--%s: not together with --beams", name)
		}
	}
	return nil
}

// params are a request's: nil without beams.
func (b *beamFlags) params() *sample.BeamParams {
	if b.Width == 0 {
		return nil
	}
	return &b.BeamParams
}

// beamMemory are explain's flags of the KV cache of beam searches.
type beamMemory struct{ beams, batch, gen int }

func (b *beamMemory) register(f *pflag.FlagSet) {
	f.IntVar(&b.beams, "beams", 0, "print the KV cache of beam searches with so many beams (0: not)")
	f.IntVar(&b.batch, "batch", 1, "with --beams or --roofline: requests")
	f.IntVar(&b.gen, "gen", 512, "with --beams or --roofline: tokens generated")
}

func (b *beamMemory) check() error {
	if b.beams < 0 || b.batch < 1 || b.gen < 1 {
		return config.Usagef("--beams %d, --batch %d, --gen %d: expected at least 0, 1, 1", b.beams, b.batch, b.gen)
	}
	return nil
}

// beamBytes is the KV cache of beam searches at their last step, by the
// equations of arXiv:2401.05391.
type beamBytes struct {
	Beams    int    `json:"beams"`
	Batch    int    `json:"batch"`
	Prompt   int    `json:"prompt"`
	Gen      int    `json:"gen"`
	Token    uint64 `json:"token_bytes"`    // equation (1)
	Standard uint64 `json:"standard_bytes"` // equation (2)
	Segment  uint64 `json:"segment_bytes"`  // equation (3)
}

// of is nil without beams.
func (b *beamMemory) of(prompt int, tokenBytes uint64) *beamBytes {
	if b.beams == 0 {
		return nil
	}
	s := kvmgr.Segments{Prompt: prompt, Response: b.gen, Beams: b.beams}
	return &beamBytes{
		Beams: b.beams, Batch: b.batch, Prompt: prompt, Gen: b.gen, Token: tokenBytes,
		Standard: kvmgr.StandardBytes(s, b.batch, tokenBytes),
		Segment:  kvmgr.SegmentBytes(s, b.batch, device.SlabTokens, tokenBytes),
	}
}

func (b *beamBytes) print(out io.Writer) error {
	_, err := fmt.Fprintf(out, "\nKV cache of %d beam searches, %d beams, %d + %d tokens, %d bytes per token:\n"+
		"  segments (what Millrace uses)  %s\n  standard (prompt per beam)     %s\n",
		b.Batch, b.Beams, b.Prompt, b.Gen, b.Token, gigabytes(b.Segment), gigabytes(b.Standard))
	return err
}

func gigabytes(n uint64) string {
	if n < 1e8 {
		return fmt.Sprintf("%.2f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.2f GB", float64(n)/1e9)
}
