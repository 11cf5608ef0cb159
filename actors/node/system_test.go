package node

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// processes are the names that the actor system knows.
func (p *Node) processes() map[string]bool {
	names := make(map[string]bool)
	for _, bucket := range p.system.ProcessRegistry.LocalPIDs.LocalPIDs {
		for name := range bucket.Items() {
			names[name] = true
		}
	}
	return names
}

func TestARequestLeavesNothingInTheActorSystem(t *testing.T) {
	p := start(t, testConfig(t, newTestDevice(64)))
	before := len(p.processes())
	for id := range 20 {
		s, err := p.Submit(t.Context(), tokensRequest(strconv.Itoa(id), []int32{1, 2, 3}, 2))
		require.NoError(t, err)
		_, _, err = read(s)
		require.NoError(t, err)
	}
	guardian := 1 // of all requests, made for the first
	require.Eventually(t, func() bool { return len(p.processes()) == before+guardian }, patience, time.Millisecond)
	require.Len(t, p.system.ProcessRegistry.LocalPIDs.LocalPIDs, registryBuckets)
}
