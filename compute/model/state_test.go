package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStatesAreCounted(t *testing.T) {
	p := &Program{
		Slots: []Slot{{Width: 300}, {Width: 300}, {Width: 60}},
		Ops: []Op{
			{Kind: OpConv, In: 0, Out: 1, Conv: &Conv{Channels: 300, Kernel: 4}},
			{Kind: OpRecur, In: 1, Out: 2, Recur: &Recur{Rule: RecurDelta, Heads: 3, KeyHeads: 1, Keys: 10, Values: 20}},
			{Kind: OpGate, In: 2, Out: 2, Gate: &Gate{Group: 20}},
		},
	}
	conv, recur := int64(3*300*4), int64(3*10*32*4) // rows of 20 values take 32
	require.Equal(t, conv+recur, p.StateBytes())
	costs := Costs(p, Work{Rows: 5, Outputs: 1}, BF16Sizes())
	require.Equal(t, 2*conv, costs[0].KVBytes, "read and written once, however many rows there are")
	require.Equal(t, int64(2*300*4*5), costs[0].Flops)
	require.Equal(t, 2*recur, costs[1].KVBytes)
	require.Equal(t, int64(7*3*10*20*5), costs[1].Flops)
	require.Equal(t, int64(60*4), costs[2].WeightBytes)
}
