package main

import (
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/config"
)

// TestTheEmbeddedServerKnowsWhoReceivesBeats, with the accounts of each way to log in.
func TestTheEmbeddedServerKnowsWhoReceivesBeats(t *testing.T) {
	plain := config.Serve{NATSListen: "127.0.0.1:0", DataDir: t.TempDir(), BodyLimit: 1 << 20, Roles: gatewayRole()}
	users := plain
	users.DataDir = t.TempDir()
	users.NATSAuthFile, _ = shipped(t)
	for name, s := range map[string]*config.Serve{"plain": &plain, "users": &users} {
		t.Run(name, func(t *testing.T) {
			to, err := openNATS(t.Context(), s, nil, zerolog.Nop())
			require.NoError(t, err)
			t.Cleanup(to.stop)
			require.NotNil(t, to.unheard)
			require.False(t, to.unheard(), "the node does not listen yet: its server may have been restarted")
			own, err := to.nodes.SubscribeSync(cluster.BeatSubject)
			require.NoError(t, err)
			require.Eventually(t, to.unheard, 20*time.Second, time.Millisecond)
			for _, subject := range []string{cluster.BeatSubject, ">", "millrace.registry.>", "millrace.registry.v2.*",
				"millrace.*.v2.beat",
				"*.registry.*.beat"} {
				other, err := to.nodes.SubscribeSync(subject)
				require.NoError(t, err)
				require.Eventually(t, func() bool { return !to.unheard() }, 20*time.Second, time.Millisecond, subject)
				require.NoError(t, other.Unsubscribe())
				require.Eventually(t, to.unheard, 20*time.Second, time.Millisecond, subject)
			}
			require.NoError(t, own.Unsubscribe())
			require.Eventually(t, func() bool { return !to.unheard() }, 20*time.Second, time.Millisecond)
		})
	}
}
