package compute

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/kvmgr"
)

// KV returns what a sequence of a program keeps in a pool of slabs, where a step has some rows at most. info is that of a device with the
// program; the zero value is that of a device that has not been opened.
func KV(p *model.Program, info device.ProgramInfo, rows, slabs int) kvmgr.Spec {
	if p.StateBytes() > 0 {
		sole := p.KVBytesPerToken(model.BF16Sizes()) == 0
		return StateKV(cmp.Or(info.HeadSlabs, p.StateSlabs(SlabBytes(p))), rows, sole)
	}
	c := counts(p)
	groups := slices.Repeat([]kvmgr.Group{p.Eviction.Group(info.HeadSlabs, device.SlabTokens)}, c.Full)
	if c.Windowed > 0 {
		w := kvmgr.NewWindow(p.Window(), p.SinkSlabs(device.SlabTokens), rows, slabs, c, device.SlabTokens)
		groups = append(groups, slices.Repeat([]kvmgr.Group{w}, c.Windowed)...)
	}
	return kvmgr.NewSpec(device.SlabTokens, groups...)
}

// StateKV is KV for layers with a state of some slabs beside those with keys and values, or without such layers. Snapshots in a prompt are
// as far from each other as a step has rows, so that they cost few steps, and as tokens fit into the slabs of one, so that they take at
// most as much of the pool as the tokens.
func StateKV(slabs, rows int, sole bool) kvmgr.Spec {
	every := device.SlabTokens * max(device.Slabs(rows), slabs)
	return kvmgr.NewSpec(device.SlabTokens, kvmgr.Full{}, kvmgr.State{Slabs: slabs, Every: every, Sole: sole})
}

// SlabBytes is the size of a KV slab, for a group of layers, on a device that has not been opened, whose keys and values of a float type
// have 16 bits. Slabs are whole pages. Where no layer has keys, a state has at most mostStateSlabs of them.
func SlabBytes(p *model.Program) int64 {
	const page, mostStateSlabs = 4096, 64
	slab := max(1, p.SlabBytesPerToken(model.BF16Sizes())*device.SlabTokens)
	if p.KVBytesPerToken(model.BF16Sizes()) == 0 {
		slab = max(slab, (p.StateBytes()+mostStateSlabs-1)/mostStateSlabs)
	}
	return (slab + page - 1) / page * page
}

func counts(p *model.Program) kvmgr.Counts {
	g := p.Groups()
	return kvmgr.Counts{Full: g.Full, Windowed: g.Windowed}
}
