package compute

import (
	"fmt"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/numerics"
)

// Numerics is what the bits of the model's logits depend on, as the loaded model has it.
func (m *Model) Numerics() numerics.Ingredients { return m.numerics }

// identify fills in the numerics of the model that was loaded.
func (m *Model) identify() error {
	info, err := m.Device.Info()
	if err != nil {
		return err
	}
	class, err := m.engine.Numerics()
	if err != nil {
		return err
	}
	probe, err := m.warmUp()
	if err != nil {
		return err
	}
	m.numerics = numerics.Ingredients{
		Backend: info.Backend, Class: class, KV: m.engine.Info().KVType,
		Program: numerics.Program(m.Program), Weights: m.content.sum, Probe: probe,
	}
	return nil
}

// warmUp runs the probe and hashes its logits. Its rows are those of one sequence among
// others, whose bits depend on none of the others: weights that were packed now have a step
// of the largest size around them.
func (m *Model) warmUp() (probe string, err error) {
	prompt := numerics.Prompt(m.Program.Vocab, min(m.Program.MaxPositions, m.slabs*device.SlabTokens))
	region, err := m.engine.NewRegionAt(0, len(prompt))
	if err != nil {
		return "", err
	}
	defer region.Close()
	for first := 0; first < len(prompt); first += m.options.MaxRows {
		chunk := prompt[first:min(first+m.options.MaxRows, len(prompt))]
		rows := device.Rows{Region: region, Tokens: chunk, Position: first, OutputsFrom: len(chunk)}
		last := first+len(chunk) == len(prompt)
		if last {
			rows.OutputsFrom--
		}
		logits, err := m.runAmongOthers(rows, device.Slabs(len(prompt)))
		if err != nil {
			return "", fmt.Errorf("warm-up step: %w", err)
		}
		if last {
			probe = numerics.Bits(logits.Row(0))
		}
	}
	return probe, nil
}

// runAmongOthers runs rows and, unless the weights are mapped, a second sequence that fills
// the step, in the slabs from used on.
func (m *Model) runAmongOthers(rows device.Rows, used int) (device.Logits, error) {
	others := min(m.options.MaxRows-len(rows.Tokens), m.Program.MaxPositions, (m.slabs-used)*device.SlabTokens)
	if m.packed != nil || others < 1 {
		return m.engine.Run([]device.Rows{rows})
	}
	region, err := m.engine.NewRegionAt(used, others)
	if err != nil {
		return device.Logits{}, err
	}
	defer region.Close()
	return m.engine.Run([]device.Rows{rows, {Region: region, Tokens: make([]int32, others), OutputsFrom: others}})
}
