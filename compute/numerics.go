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
		Program: numerics.Program(m.Program), Weights: m.content.sum, Probe: probe, Lossy: m.Program.Lossy(),
	}
	return nil
}

// probeSlabs are the places of slabs that the probe uses while it runs.
const probeSlabs = 2

// warmUp runs the probe and hashes its logits: a slab of tokens, which then stands at every
// place of the sequence but the last, and the tokens after those. So the last rows attend over
// more than two blocks of keys at the price of two small steps.
func (m *Model) warmUp() (probe string, err error) {
	positions, groups := m.Program.MaxPositions, m.engine.Groups().Count()
	if m.slabs < probeSlabs*groups {
		positions = min(positions, device.SlabTokens)
	}
	prompt := numerics.Prompt(m.Program.Vocab, positions)
	region, err := m.engine.NewRegion(len(prompt))
	if err != nil {
		return "", err
	}
	defer region.Close()
	if !m.kv.Beams || m.Program.Encoder() { // the same slab must not be at two places, or all rows are to be in one step
		return m.wholeProbe(region, prompt)
	}
	slabs := make([]int32, m.engine.Slabs(len(prompt)))
	last := device.Slabs(len(prompt)) - 1
	for i := range slabs {
		slabs[i] = int32(i % groups)
		if last > 0 && i/groups == last {
			slabs[i] += int32(groups)
		}
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

// wholeProbe is warmUp with slabs for all of the prompt, or for as much of it as the pool holds.
func (m *Model) wholeProbe(region *device.Region, prompt []int32) (probe string, err error) {
	if m.Program.Encoder() {
		prompt = prompt[:min(len(prompt), m.options.MaxRows)]
	}
	slabs := make([]int32, min(m.slabs, m.engine.Slabs(len(prompt))))
	for i := range slabs {
		slabs[i] = int32(i)
	}
	if err := region.Append(slabs); err != nil {
		return "", err
	}
	probe, err = m.runProbe(region, prompt, 0, min(region.Tokens(), len(prompt)))
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
	groups := m.engine.Groups().Count()
	others := min(m.options.MaxRows-len(rows.Tokens), m.Program.MaxPositions, (m.slabs/groups-probeSlabs)*device.SlabTokens)
	if m.packed != nil || rows.Position > 0 || others < 1 || !m.kv.Beams {
		return m.engine.Run([]device.Rows{rows})
	}
	region, err := m.engine.NewRegionAt(probeSlabs*groups, others)
	if err != nil {
		return device.Logits{}, err
	}
	defer region.Close()
	return m.engine.Run([]device.Rows{rows, {Region: region, Tokens: make([]int32, others), OutputsFrom: others}})
}
