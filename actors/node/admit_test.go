package node

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
)

func TestWhatComesDuringAStepBeginsInTheNext(t *testing.T) {
	d := newTestDevice(100)
	d.gate = make(chan struct{})
	cfg := testConfig(t, d)
	cfg.admitPatience = patience
	p := start(t, cfg)
	open := sync.OnceFunc(func() { close(d.gate) })
	t.Cleanup(open) // before the pipeline's
	running, err := p.Submit(context.Background(), tokensRequest("running", []int32{1, 2}, 20))
	require.NoError(t, err)
	d.gate <- struct{}{} // its prompt
	require.Eventually(t, func() bool { return d.begun.Load() == 2 }, patience, time.Millisecond)
	prompt := make([]int32, 40)
	r := tokensRequest("fresh", prompt, 20)
	fresh, err := p.Submit(context.Background(), r)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return p.worker.InFlight() == 2 }, patience, time.Millisecond)
	reply, got := probe(p)
	p.system.Root.Send(p.worker.PID(), &msg.Find{RequestID: r.OriginKey(), Reply: reply})
	receive[*msg.Found](t, got) // the worker's actor has handed the sequence over
	d.gate <- struct{}{}
	d.gate <- struct{}{}
	d.gate <- struct{}{} // the third step has ended when the fourth takes this
	d.mu.Lock()
	rows := d.largest
	d.mu.Unlock()
	require.Equal(t, 1+len(prompt), rows)
	open()
	for stream, of := range map[api.Stream][]int32{running: {1, 2}, fresh: prompt} {
		tokens, _, err := read(stream)
		require.NoError(t, err)
		require.Equal(t, expected(d, of, 20), tokens)
	}
	requireClean(t, p, d)
}
