package faultproxy

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// echo is a server that sends back what it gets.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
	return l.Addr().String()
}

func proxied(t *testing.T) (*Proxy, net.Conn) {
	p, err := NewProxy(t.Context(), echo(t))
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	c, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	say(t, c, "one")
	return p, c
}

func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
	hear(t, c, text)
}

func hear(t *testing.T, c net.Conn, text string) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(30*time.Second)))
	got := make([]byte, len(text))
	_, err := io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, text, string(got))
}

func TestABlackholeKeepsConnectionsAndDelaysWhatWasSent(t *testing.T) {
	p, c := proxied(t)
	p.Blackhole()
	p.Blackhole() // as once
	_, err := io.WriteString(c, "two")
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = c.Read(make([]byte, 1))
	require.ErrorContains(t, err, "timeout")
	p.Heal()
	hear(t, c, "two")
	say(t, c, "three")
}

func TestACutClosesConnectionsAndRefusesNewOnesUntilItHeals(t *testing.T) {
	p, c := proxied(t)
	p.Cut()
	_, err := c.Read(make([]byte, 1))
	require.Error(t, err)
	again, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	_, err = again.Read(make([]byte, 1))
	require.Error(t, err)
	p.Heal()
	again, err = net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	say(t, again, "four")
	require.NoError(t, p.Close())
	_, err = again.Read(make([]byte, 1))
	require.Error(t, err)
}

func TestARedirectIsForNewConnections(t *testing.T) {
	p, old := proxied(t)
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { other.Close() })
	p.Redirect(other.Addr().String())
	say(t, old, "still there")
	c, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	accepted, err := other.Accept()
	require.NoError(t, err)
	accepted.Close()
}
