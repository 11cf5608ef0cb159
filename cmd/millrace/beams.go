package main

import (
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/config"
)

// beamFlags are generate's flags of a beam search.
type beamFlags struct {
	sample.BeamParams // Width 0: none
	early             string
}

func (b *beamFlags) register(f *pflag.FlagSet) {
	f.IntVar(&b.Width, "beams", 0, "beams of a beam search, which prints the best answer at the end (0: sample)")
	f.Float64Var(&b.LengthPenalty, "length-penalty", 1, "exponent of the length that divides a beam's log probability, with --beams")
	f.StringVar(&b.early, "early-stopping", "false", "when a beam search ends, with --beams, as in transformers: false, true or never")
	f.Lookup("early-stopping").NoOptDefVal = "true"
}

// check reads --early-stopping, and refuses the given flags together with --beams.
func (b *beamFlags) check(f, refused *pflag.FlagSet) error {
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
	var err error
	refused.VisitAll(func(flag *pflag.Flag) {
		if err == nil && flag.Changed && flag.Value.String() != flag.DefValue {
			err = config.Usagef("--%s: not together with --beams", flag.Name)
		}
	})
	return err
}

// params are a request's: nil without beams.
func (b *beamFlags) params() *sample.BeamParams {
	if b.Width == 0 {
		return nil
	}
	return &b.BeamParams
}
