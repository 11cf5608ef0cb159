package roofline

import (
	"embed"
	"path"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/kvmgr"
)

// The models' published configurations, as far as they decide shapes. (Table 1
// of the paper gives GPT-J 32 layers; the published GPT-J-6B has 28.)
//
//go:embed paper/*.json
var paperConfigs embed.FS

// What arXiv:2401.05391 measured on (section 4): "effective memory bandwidth
// about 1000GB/s" per tile.
const paperEffectiveGBps = 1000

// PaperDevices are the paper's machine, a tile of Max 1550: at its peak, and at
// the bandwidth that the paper calls effective.
func PaperDevices() (peak, effective sim.Peak, err error) {
	if peak, err = sim.FindPeak("max-1550-tile"); err != nil {
		return sim.Peak{}, sim.Peak{}, err
	}
	effective = peak
	effective.ID += "-effective"
	effective.Name += ", at the paper's effective bandwidth"
	effective.GBps = paperEffectiveGBps
	return peak, effective, nil
}

// PaperModel is a model of the paper and the tiles it ran on there. Llama-2-7B
// is not among its measurements; it stands beside Llama-2-13B on one tile.
type PaperModel struct {
	Name  string
	Tiles int
}

// PaperModels lists the models of arXiv:2401.05391, section 4.
func PaperModels() []PaperModel {
	return []PaperModel{{"gpt-j-6b", 1}, {"llama-2-7b", 1}, {"llama-2-13b", 1}, {"opt-30b", 2}, {"bloom-176b", 8}}
}

// Program is the model's program, from its configuration alone.
func (m PaperModel) Program() (*model.Program, error) {
	file := path.Join("paper", m.Name+".json")
	text, err := paperConfigs.ReadFile(file)
	if err != nil {
		return nil, err
	}
	cfg, err := family.ParseConfig(file, text)
	if err != nil {
		return nil, err
	}
	return family.Build(cfg, nil)
}

// PaperCase is a model at a setting of the paper.
type PaperCase struct {
	Model string `json:"model"`
	Workload
	WeightBytes int64 `json:"weight_bytes_per_tile"` // read in a decode step
	// The bounds at the tile's peak and at the paper's effective bandwidth.
	PeakTTFT      float64 `json:"peak_ttft_seconds"`
	PeakTPOT      float64 `json:"peak_tpot_seconds"`
	EffectiveTTFT float64 `json:"effective_ttft_seconds"`
	EffectiveTPOT float64 `json:"effective_tpot_seconds"`
}

// Paper is the paper's latency measurements, bounded from below, and the
// figures of its text. Its latencies are bars and curves without numbers
// (figures 7 to 9), so no latency of its own can stand here.
type Paper struct {
	Peak      sim.Peak    `json:"peak"`
	Effective sim.Peak    `json:"effective"`
	Latency   []PaperCase `json:"latency"`        // figure 8: 1024 + 128 tokens, batch 1, beams 1 and 4
	Prompts   []PaperCase `json:"prompt_lengths"` // figure 7: Llama-2-13B, 32 tokens, batch 1, 4 beams
	// The prompt at which the linear ops of Llama-2-13B cease to be bound by
	// memory, which the paper sees as the bend of its first-token latency.
	PeakBend      int         `json:"peak_bend_tokens"`
	EffectiveBend int         `json:"effective_bend_tokens"`
	PaperBend     int         `json:"paper_bend_tokens"`
	SDPA          []PaperSDPA `json:"sdpa"`
	// Figure 4: 4 beams, 1024 + 1024 tokens.
	Memory []PaperMemory `json:"kv_memory"`
}

// PaperMemory is the KV cache of a batch of beam searches at their last step.
type PaperMemory struct {
	Model    string `json:"model"`
	Batch    int    `json:"batch"`
	Standard uint64 `json:"standard_bytes"` // equation (2)
	Segment  uint64 `json:"segment_bytes"`  // equation (3)
}

// PaperSDPA is the bandwidth of the paper's attention kernel in decode steps of
// Llama-2-13B, 4 beams (figure 6 and section 4.1).
type PaperSDPA struct {
	Batch int     `json:"batch"`
	GBps  float64 `json:"gbps"`
}

// NewPaper computes the bounds of the paper's settings.
func NewPaper() (*Paper, error) {
	p := &Paper{PaperBend: 512, SDPA: []PaperSDPA{{1, 727}, {16, 942}}}
	var err error
	if p.Peak, p.Effective, err = PaperDevices(); err != nil {
		return nil, err
	}
	for _, m := range PaperModels() {
		program, err := m.Program()
		if err != nil {
			return nil, err
		}
		for _, beams := range []int{1, 4} {
			w := Workload{Prompt: 1024, Gen: 128, Batch: 1, Beams: beams, Tiles: m.Tiles}
			p.Latency = append(p.Latency, p.bound(m, program, w))
		}
		p.Memory = append(p.Memory, memory(m.Name, program)...)
		if m.Name != "llama-2-13b" {
			continue
		}
		for prompt := 32; prompt <= 4096; prompt *= 2 {
			w := Workload{Prompt: prompt, Gen: 32, Batch: 1, Beams: 4, Tiles: m.Tiles}
			p.Prompts = append(p.Prompts, p.bound(m, program, w))
		}
		p.PeakBend, p.EffectiveBend = bend(program, p.Peak), bend(program, p.Effective)
	}
	return p, nil
}

func (p *Paper) bound(m PaperModel, program *model.Program, w Workload) PaperCase {
	sizes := model.BF16Sizes() // f16 there: of the same size
	peak, effective := NewBound(program, w, p.Peak, sizes), NewBound(program, w, p.Effective, sizes)
	var weights int64
	for _, c := range Costs(program, w.Decode(0), sizes) {
		weights += c.WeightBytes
	}
	return PaperCase{
		Model: m.Name, Workload: w, WeightBytes: weights,
		PeakTTFT: peak.TTFT, PeakTPOT: peak.TPOT,
		EffectiveTTFT: effective.TTFT, EffectiveTPOT: effective.TPOT,
	}
}

func memory(name string, program *model.Program) (list []PaperMemory) {
	s := kvmgr.Segments{Prompt: 1024, Response: 1024, Beams: 4}
	token := uint64(program.KVBytesPerToken(model.BF16Sizes()))
	for batch := 1; batch <= 32; batch *= 2 {
		list = append(list, PaperMemory{name, batch, kvmgr.StandardBytes(s, batch, token),
			kvmgr.SegmentBytes(s, batch, device.SlabTokens, token)})
	}
	return list
}

// bend is the least prompt whose linear ops take a device longer for their
// products than for their bytes; 0: none.
func bend(p *model.Program, d sim.Peak) int {
	for prompt := 1; prompt <= p.MaxPositions; prompt++ {
		var c model.Cost
		costs := Costs(p, Step{Batch: 1, Beams: 1, Rows: prompt, Tiles: 1}, model.BF16Sizes())
		for i := range p.Ops {
			if p.Ops[i].Kind == model.OpLinear && p.Ops[i].Layer != model.None {
				c = c.Plus(costs[i])
			}
		}
		if d.ProductSeconds(c.Flops) > d.MemorySeconds(c.Bytes()) {
			return prompt
		}
	}
	return 0
}
