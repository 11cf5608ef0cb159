package compute

import (
	"cmp"
	"fmt"

	"github.com/millrace/millrace/compute/device"
)

// Drafter is what a Runner has whose first layers make draft tokens.
type Drafter interface {
	// Draft runs one row of each sequence through the first layers and the head. Earlier positions are computed, by Run or by Draft, and
	// Run computes this one again. The logits are valid until the next Draft.
	Draft(batch []Rows) (Logits, error)
}

// loadEarly loads the program of the first layers beside the whole one. Both will have the memory of one pool, where the first group of
// slabs is that of these layers. The backend packs their weights a second time.
func (m *Model) loadEarly() error {
	if backend := cmp.Or(m.options.Device.Backend, "cpu"); !device.OnCaller(backend) {
		return fmt.Errorf("draft tokens by the first layers: %w: found backend %s, expected cpu or ref, whose pools two programs can map",
			device.ErrUnsupported, backend)
	}
	program, err := m.Program.Early()
	if err != nil {
		return err
	}
	rows := max(m.options.DraftRows, 1)
	if m.early, err = m.Device.Load(program, m.checkpoint, device.Limits{MaxRows: rows, MaxOutputs: rows}); err != nil {
		return fmt.Errorf("draft tokens by the first layers: %w", err)
	}
	if found, expected := m.early.Info().SlabBytes, m.engine.Info().SlabBytes; found != expected {
		return fmt.Errorf("draft tokens by the first layers: %w: slabs of %d bytes, expected %d as of all layers", device.ErrUnsupported,
			found, expected)
	}
	return nil
}

// Drafter is the model itself where its first layers make draft tokens, else nil.
func (m *Model) Drafter() Drafter {
	if m.options.DraftLayers == 0 {
		return nil
	}
	return m
}

// Draft runs one step of the first layers. Regions are this model's.
func (m *Model) Draft(batch []Rows) (Logits, error) {
	m.batch = m.batch[:0]
	for _, r := range batch {
		region, ok := r.Region.(*earlyRegion)
		if !ok {
			return nil, fmt.Errorf("run step of the first layers: %w: a region of type %T", device.ErrInvalid, r.Region)
		}
		m.batch = append(m.batch, device.Rows{Region: region.early, Tokens: r.Tokens, Position: r.Position})
	}
	return m.early.Run(m.batch)
}

// earlyRegion is a region of the whole program, and one of the first layers' with the slabs of the first group.
type earlyRegion struct {
	*device.Region
	early  *device.Region
	groups int
	first  []int32 // reused
}

func (m *Model) newEarlyRegion(whole *device.Region, tokens int) (Region, error) {
	early, err := m.early.NewRegion(tokens)
	if err != nil {
		whole.Close()
		return nil, err
	}
	return &earlyRegion{Region: whole, early: early, groups: m.engine.Groups().Count()}, nil
}

func (r *earlyRegion) Append(slabs []int32) error {
	if err := r.Region.Append(slabs); err != nil {
		return err
	}
	r.first = r.first[:0]
	for i := 0; i < len(slabs); i += r.groups {
		r.first = append(r.first, slabs[i])
	}
	return r.early.Append(r.first)
}

func (r *earlyRegion) Unmap(n int) (int, error) {
	unmapped, err := r.Region.Unmap(n)
	if err != nil {
		return 0, err
	}
	_, err = r.early.Unmap(unmapped / r.groups)
	return unmapped, err
}

func (r *earlyRegion) Close() {
	r.early.Close()
	r.Region.Close()
}
