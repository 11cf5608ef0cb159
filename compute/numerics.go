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

// probeSlabs are the slabs of the pool that the probe uses while it runs.
const probeSlabs = 2

// warmUp runs the probe and hashes its logits: a slab of tokens, which then stands at every
// place of the sequence but the last, and the tokens after those. So the last rows attend over
// more than two blocks of keys at the price of two small steps.
func (m *Model) warmUp() (probe string, err error) {
	positions := m.Program.MaxPositions
	if m.slabs < probeSlabs {
		positions = min(positions, device.SlabTokens)
	}
	prompt := numerics.Prompt(m.Program.Vocab, positions)
	region, err := m.engine.NewRegion(len(prompt))
	if err != nil {
		return "", err
	}
	defer region.Close()
	slabs := make([]int32, device.Slabs(len(prompt)))
	last := len(slabs) - 1
	if last > 0 {
		slabs[last] = 1
	}
	if err := region.Append(slabs); err != nil {
		return "", err
	}
	probe, err = m.runProbe(region, prompt, 0, min(device.SlabTokens, len(prompt)))
	if err == nil && last > 0 {
		probe, err = m.runProbe(region, prompt, last*device.SlabTokens, len(prompt))
	}
	if err != nil {
		return "", fmt.Errorf("warm-up step: %w", err)
	}
	return probe, nil
}

// runProbe runs the tokens of a prompt from first to end, and hashes the logits of the last.
func (m *Model) runProbe(region *device.Region, prompt []int32, first, end int) (probe string, err error) {
	for ; first < end; first += m.options.MaxRows {
		chunk := prompt[first:min(first+m.options.MaxRows, end)]
		rows := device.Rows{Region: region, Tokens: chunk, Position: first, OutputsFrom: len(chunk) - 1}
		logits, err := m.runAmongOthers(rows)
		if err != nil {
			return "", err
		}
		probe = numerics.Bits(logits.Row(0))
	}
	return probe, nil
}

// runAmongOthers runs rows and, unless the weights are mapped, a second sequence that fills
// the step: it is of the largest size then. The bits of the rows do not depend on it.
func (m *Model) runAmongOthers(rows device.Rows) (device.Logits, error) {
	others := min(m.options.MaxRows-len(rows.Tokens), m.Program.MaxPositions, (m.slabs-probeSlabs)*device.SlabTokens)
	if m.packed != nil || rows.Position > 0 || others < 1 {
		return m.engine.Run([]device.Rows{rows})
	}
	region, err := m.engine.NewRegionAt(probeSlabs, others)
	if err != nil {
		return device.Logits{}, err
	}
	defer region.Close()
	return m.engine.Run([]device.Rows{rows, {Region: region, Tokens: make([]int32, others), OutputsFrom: others}})
}
