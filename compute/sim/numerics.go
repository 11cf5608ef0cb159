package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/millrace/millrace/compute/numerics"
)

// version is the version of the tokens of a simulated device. A change of its tokens raises it.
const version = 1

// Numerics returns the ingredients of the answers of a simulated device: the program, the device
// that it stands for, and the words of its answers. Its speed does not matter.
func (r *Runner) Numerics() numerics.Ingredients {
	h := sha256.New()
	numerics.Field(h, "text", fmt.Sprint(r.logits.words.text != nil, r.logits.words.text))
	numerics.Field(h, "end", fmt.Sprint(r.logits.words.end))
	numerics.Field(h, "mean", fmt.Sprint(r.logits.words.mean))
	return numerics.Ingredients{
		Backend: "sim", Class: fmt.Sprintf("sim %d %s", version, r.options.Device.ID),
		KV: r.options.Program.KV.String(), Program: numerics.Program(r.options.Program),
		Probe: hex.EncodeToString(h.Sum(nil)), Lossy: r.options.Program.Lossy(),
	}
}
