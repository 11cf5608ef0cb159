// Package natstest runs NATS servers inside tests. It must not know what travels through them.
package natstest

import (
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

const patience = 20 * time.Second // longest start of a server

// Start runs a server on the loopback interface until the test ends. It fills in the
// zero values of o (nil: all of them): a free port, and a folder of the test's
// own for JetStream.
func Start(t testing.TB, o *server.Options) *server.Server {
	t.Helper()
	if o == nil {
		o = &server.Options{}
	}
	o.Host, o.NoLog, o.NoSigs = "127.0.0.1", true, true
	if o.Port == 0 {
		o.Port = server.RANDOM_PORT
	}
	if o.StoreDir == "" {
		o.StoreDir = t.TempDir()
	}
	s, err := server.NewServer(o)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	require.True(t, s.ReadyForConnections(patience), "the NATS server is not ready")
	return s
}

// Stop ends a server. The options start a server with JetStream at the same port, without the
// data of the first one.
func Stop(s *server.Server) *server.Options {
	port := s.Addr().(*net.TCPAddr).Port
	s.Shutdown()
	s.WaitForShutdown()
	return &server.Options{JetStream: true, Port: port}
}

// Restart stops a server and starts one in its place.
func Restart(t testing.TB, s *server.Server) *server.Server {
	t.Helper()
	return Start(t, Stop(s))
}

// Connect returns a connection to a server, which is closed when the test ends.
func Connect(t testing.TB, s *server.Server, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), options...)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}
