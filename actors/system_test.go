package actors

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// processes counts what the actor system knows by name.
func (p *Pipeline) processes() (n int) {
	for _, bucket := range p.system.ProcessRegistry.LocalPIDs.LocalPIDs {
		n += bucket.Count()
	}
	return n
}

func TestARequestLeavesNothingInTheActorSystem(t *testing.T) {
	p := start(t, testConfig(t, newTestDevice(64)))
	before := p.processes()
	for id := range 20 {
		s, err := p.Submit(t.Context(), tokensRequest(strconv.Itoa(id), []int32{1, 2, 3}, 2))
		require.NoError(t, err)
		_, _, err = read(s)
		require.NoError(t, err)
	}
	guardian := 1 // of all requests, made for the first
	require.Eventually(t, func() bool { return p.processes() == before+guardian }, patience, time.Millisecond)
	require.Len(t, p.system.ProcessRegistry.LocalPIDs.LocalPIDs, registryBuckets)
}
