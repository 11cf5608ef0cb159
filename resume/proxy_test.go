package resume_test

import (
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy stands between a gateway and its NATS server. Halted, it takes bytes and passes none
// on, as a process that was stopped (SIGSTOP) looks to the others.
type proxy struct {
	listener net.Listener
	mu       sync.Mutex
	open     chan struct{} // closed while bytes pass
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	u, err := url.Parse(to)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: l, open: make(chan struct{})}
	close(p.open)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", u.Host)
			if err != nil {
				in.Close()
				return
			}
			go p.copy(in, out)
			go p.copy(out, in)
		}
	}()
	return p
}

func (p *proxy) url() string { return "nats://" + p.listener.Addr().String() }

func (p *proxy) copy(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		open := p.open
		p.mu.Unlock()
		<-open
		if _, werr := to.Write(buf[:n]); werr != nil || err != nil {
			return
		}
	}
}

func (p *proxy) halt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = make(chan struct{})
}

func (p *proxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.open)
}
