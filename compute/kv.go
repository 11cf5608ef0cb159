package compute

import (
	"slices"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/kvmgr"
)

// KV returns what a sequence of a program keeps in a pool of slabs, where a step has some rows at most. info is that of a device with the program; the
// zero value is that of a device that has not been opened.
func KV(p *model.Program, info device.ProgramInfo, rows, slabs int) kvmgr.Spec {
	c := counts(p)
	full := kvmgr.Group(kvmgr.Full{Head: info.HeadSlabs})
	if info.MostSlabs > 0 {
		full = kvmgr.Bounded{Slabs: info.MostSlabs}
	}
	groups := slices.Repeat([]kvmgr.Group{full}, c.Full)
	if c.Windowed > 0 {
		w := kvmgr.NewWindow(p.Window(), p.SinkSlabs(device.SlabTokens), rows, slabs, c, device.SlabTokens)
		groups = append(groups, slices.Repeat([]kvmgr.Group{w}, c.Windowed)...)
	}
	return kvmgr.NewSpec(device.SlabTokens, groups...)
}

func counts(p *model.Program) kvmgr.Counts {
	g := p.Groups()
	return kvmgr.Counts{Full: g.Full, Windowed: g.Windowed}
}
