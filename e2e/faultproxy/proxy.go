// Package faultproxy is a TCP proxy that causes faults of the network in tests. It must not know the
// protocol that it forwards.
package faultproxy

import (
	"context"
	"net"
	"sync"
)

// Proxy is a TCP proxy that can refuse, close or hold connections.
type Proxy struct {
	listener net.Listener

	mu     sync.Mutex
	target string
	conns  map[net.Conn]struct{}
	open   chan struct{} // closed while bytes may pass
	refuse bool
	done   sync.WaitGroup
}

// NewProxy starts a proxy to target on a loopback port.
func NewProxy(ctx context.Context, target string) (*Proxy, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, target: target, conns: map[net.Conn]struct{}{}, open: make(chan struct{})}
	close(p.open)
	p.done.Go(p.accept)
	return p, nil
}

// Addr returns the address that the proxy listens on.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Redirect changes the target of new connections. Open connections stay.
func (p *Proxy) Redirect(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Cut closes every connection and refuses new ones until Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = true
	p.closeAll()
}

// Blackhole lets no byte through until Heal. Connections stay open, as in a network that drops
// packets. Bytes sent meanwhile arrive after Heal.
func (p *Proxy) Blackhole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.passing() {
		p.open = make(chan struct{})
	}
}

// Heal ends Cut and Blackhole.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = false
	if !p.passing() {
		close(p.open)
	}
}

// Close ends the proxy and its connections.
func (p *Proxy) Close() error {
	err := p.listener.Close()
	p.Heal()
	p.mu.Lock()
	p.refuse = true
	p.closeAll()
	p.mu.Unlock()
	p.done.Wait()
	return err
}

func (p *Proxy) closeAll() {
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

// passing reports whether bytes are forwarded. The caller holds mu.
func (p *Proxy) passing() bool {
	select {
	case <-p.open:
		return true
	default:
		return false
	}
}

func (p *Proxy) accept() {
	for {
		from, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.done.Go(func() { p.serve(from) })
	}
}

// keep registers a connection. It reports false if the proxy refuses connections.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.refuse {
		p.conns[c] = struct{}{}
	}
	return !p.refuse
}

func (p *Proxy) drop(c net.Conn) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *Proxy) serve(from net.Conn) {
	defer p.drop(from)
	if !p.keep(from) {
		return
	}
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	to, err := new(net.Dialer).DialContext(context.Background(), "tcp", target)
	if err != nil {
		return // the server is down, so the client's connection is closed too
	}
	defer p.drop(to)
	if !p.keep(to) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.copy(to, from) })
	both.Go(func() { p.copy(from, to) })
	both.Wait()
}

// copy forwards bytes in one direction until either end closes, which closes both.
func (p *Proxy) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		open := p.open
		p.mu.Unlock()
		<-open
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
