package node

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/actors/kv"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/kvmgr/kvdisk"
	"github.com/millrace/millrace/kvmgr/tier"
)

// diskTTL is how long keys and values that nobody uses stay on the disk.
const diskTTL = 24 * time.Hour

// openDisk opens the store of Config.KVDisk; nil without.
func (p *Node) openDisk() (kv.Store, error) {
	c, model := p.cfg.KVDisk, p.cfg.Model
	if c.Dir == "" {
		return nil, nil
	}
	spec := model.KV()
	if err := spec.Validate(kvmgr.Wants{Disk: true}); err != nil {
		return nil, fmt.Errorf("node: backend %s: %w", p.cfg.Backend, err)
	}
	store, err := kvdisk.Open(kvdisk.Config{
		Dir: c.Dir, Size: c.Size, SlabBytes: model.SlabBytes(), SlabTokens: spec.SlabTokens, StateSlabs: spec.Head(),
		Identity: slabsOf(p.cfg.Numerics, model.SlabLayout()), TTL: diskTTL,
	})
	if err != nil {
		return nil, err
	}
	s := store.Stats()
	p.log.Info().Int("slabs", s.Slabs).Int("most", s.Most).Msg("keys and values outlive the process on the disk")
	p.disk = store
	return store, nil
}

// openTier opens the file of Config.KVSpill; nil without.
func (p *Node) openTier() (kv.Tier, error) {
	c, model := p.cfg.KVSpill, p.cfg.Model
	if c.Dir == "" {
		return nil, nil
	}
	spec, s := model.KV(), p.cfg.Sched
	if err := spec.Validate(kvmgr.Wants{Tier: true}); err != nil {
		return nil, fmt.Errorf("node: backend %s: %w", p.cfg.Backend, err)
	}
	longest := spec.Need().AtOnce((s.MaxSequenceTokens + spec.SlabTokens - 1) / spec.SlabTokens)
	most := int64(s.MaxBatchSize+s.MaxWaiting) * int64(longest) // slabs of all sequences
	file, err := tier.Open(c.Dir, min(c.Size, most*int64(model.SlabBytes())), model.SlabBytes())
	if err != nil {
		return nil, fmt.Errorf("%w (--kv-spill-size sets less aside, --kv-spill uses another directory)", err)
	}
	p.log.Info().Int("slabs", file.Slots()).Msg("paused sequences may wait on the disk")
	p.tier = file
	return file, nil
}

// closeDisk stores what the sequences that just ended have left, as long as the disk is quick. An error says that the KV
// manager may still use the device.
func (p *Node) closeDisk() error {
	if err := p.kv.Flush(); err != nil {
		p.log.Warn().Err(err).Msg("not all keys and values are on the disk")
	}
	return p.kv.CloseDisk()
}
