package main

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/config"
)

// crowd connects until the server refuses.
func crowd(t *testing.T, url string, option nats.Option) (conns []*nats.Conn) {
	t.Helper()
	for {
		nc, err := nats.Connect(url, option, nats.NoReconnect())
		if err != nil {
			require.ErrorIs(t, err, nats.ErrAuthorization)
			return conns
		}
		t.Cleanup(nc.Close)
		conns = append(conns, nc)
	}
}

// TestConnectionsOfOneTenantLeaveThoseOfAnother fills the share of clients without a key, and that of a tenant. Another tenant has its own,
// and ended connections count no more.
func TestConnectionsOfOneTenantLeaveThoseOfAnother(t *testing.T) {
	s := &config.Serve{NATSListen: "127.0.0.1:0", DataDir: t.TempDir(), BodyLimit: 1 << 20}
	ring, keys := keyring(t, "evil", "acme")
	o, err := natsServerOptions(s)
	require.NoError(t, err)
	o.MaxConn = 64 // 48 for clients: 12 without a key, 9 for each tenant, 18 for the first
	e, err := launchNATS(o, s, ring, zerolog.Nop())
	require.NoError(t, err)
	defer e.server.Shutdown()
	url := e.server.ClientURL()
	anonymous := crowd(t, url, nats.Name("anonymous"))
	require.Len(t, anonymous, 12)
	require.Len(t, crowd(t, url, nats.Token(keys[0])), 27)
	require.Len(t, crowd(t, url, nats.Token(keys[1])), 9)
	anonymous[0].Close()
	require.Eventually(t, func() bool {
		nc, err := nats.Connect(url, nats.NoReconnect())
		if err == nil {
			t.Cleanup(nc.Close)
		}
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
}

// TestAConnectionThatDoesNotLogInEnds also has one that sends nothing but pings.
func TestAConnectionThatDoesNotLogInEnds(t *testing.T) {
	s := &config.Serve{NATSListen: "127.0.0.1:0", DataDir: t.TempDir(), BodyLimit: 1 << 20}
	ring, _ := keyring(t, "acme")
	o, err := natsServerOptions(s)
	require.NoError(t, err)
	o.AuthTimeout = 0.05
	e, err := launchNATS(o, s, ring, zerolog.Nop())
	require.NoError(t, err)
	defer e.server.Shutdown()
	for _, text := range []string{"", "PING\r\n", "PING\r\n" + "PING\r\n"} {
		c, err := net.Dial("tcp", e.server.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, text)
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err = io.ReadAll(c)
		var late net.Error
		require.False(t, errors.As(err, &late) && late.Timeout(), "still open")
	}
	require.Equal(t, 2*time.Second, natsAuthTimeout)
}

func TestConnectionsAreNotCountedWithoutNeed(t *testing.T) {
	counts := 0
	c := newConnections(64, func() int { return 1 }, func() ([]uint64, error) { counts++; return nil, nil })
	for id := range uint64(36) {
		require.True(t, c.enter(id, apitest.Keys{"k": {ID: "k", Tenant: "t"}}["k"]))
	}
	require.Zero(t, counts)
	require.True(t, c.enter(36, apitest.Keys{"k": {ID: "k", Tenant: "t"}}["k"]))
	require.Equal(t, 1, counts)
}
