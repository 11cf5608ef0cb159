package explain

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
)

func TestLaunchesAreGatheredByEqualLayers(t *testing.T) {
	p := &model.Program{}
	var prefill, decode []device.OpTime
	add := func(layer int, name string, inPrefill, inDecode int) {
		p.Ops = append(p.Ops, model.Op{Name: name, Layer: layer})
		prefill = append(prefill, device.OpTime{Launches: inPrefill})
		decode = append(decode, device.OpTime{Launches: inDecode})
	}
	add(-1, "embed", 1, 1)
	for layer := range 4 {
		add(layer, "norm", 1, 1)
		add(layer, "linear", 2+layer/3, 1) // the last one differs
	}
	add(-1, "logits", 3, 1)

	l := newLaunches(p, prefill, decode)
	require.Equal(t, []LaunchGroup{
		{First: -1, Count: 1, Ops: []OpLaunch{{"embed", 1, 1}}, Prefill: 1, Decode: 1},
		{First: 0, Count: 3, Ops: []OpLaunch{{"norm", 1, 1}, {"linear", 2, 1}}, Prefill: 3, Decode: 2},
		{First: 3, Count: 1, Ops: []OpLaunch{{"norm", 1, 1}, {"linear", 3, 1}}, Prefill: 4, Decode: 2},
		{First: -1, Count: 1, Ops: []OpLaunch{{"logits", 3, 1}}, Prefill: 3, Decode: 1},
	}, l.Groups)
	require.Equal(t, 17, l.Prefill)
	require.Equal(t, 10, l.Decode)
	var out bytes.Buffer
	require.NoError(t, l.Print(&out))
	require.Regexp(t, `0-2 +each layer +3 +2`, out.String())
	require.Regexp(t, `whole step +17 +10`, out.String())
}
