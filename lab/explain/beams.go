package explain

import (
	"fmt"
	"io"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/kvmgr"
)

// Beams is the KV cache of beam searches at their last step, by the
// equations of arXiv:2401.05391.
type Beams struct {
	Beams    int    `json:"beams"`
	Batch    int    `json:"batch"`
	Prompt   int    `json:"prompt"`
	Gen      int    `json:"gen"`
	Token    uint64 `json:"token_bytes"`    // equation (1)
	Standard uint64 `json:"standard_bytes"` // equation (2)
	Segment  uint64 `json:"segment_bytes"`  // equation (3)
}

// NewBeams counts the KV cache of batch beam searches.
func NewBeams(s kvmgr.Segments, batch int, tokenBytes uint64) *Beams {
	return &Beams{
		Beams: s.Beams, Batch: batch, Prompt: s.Prompt, Gen: s.Response, Token: tokenBytes,
		Standard: kvmgr.StandardBytes(s, batch, tokenBytes),
		Segment:  kvmgr.SegmentBytes(s, batch, device.SlabTokens, tokenBytes),
	}
}

// Print writes the sizes for people.
func (b *Beams) Print(out io.Writer) error {
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
