package main

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/wait"
)

// betweenFaults is the time under load between the end of a fault and the next one.
const betweenFaults = 3 * time.Second

// stalls suspends (SIGSTOP) one process of each role for much longer than the others need to
// notice, and then continues it.
func stalls(ctx context.Context, s *suite) (*report, error) {
	return s.disturbed(ctx, "stalls", s.config("stalls"), func(ctx context.Context, t *trial) error {
		for _, role := range t.victims {
			m := t.one(role)
			if err := wait.For(ctx, betweenFaults); err != nil {
				return err
			}
			t.struck("SIGSTOP", role, m.Name)
			if err := m.Stop(); err != nil {
				return err
			}
			if err := wait.For(ctx, 10*time.Second); err != nil {
				return err
			}
			if err := m.Continue(); err != nil {
				return err
			}
		}
		return wait.For(ctx, betweenFaults)
	})
}

// cuts drops all packets between one process of each role and NATS for 20 s. Then it closes the
// connections of all processes at once for 3 s.
func cuts(ctx context.Context, s *suite) (*report, error) {
	c := s.config("cuts")
	c.Proxied = true
	return s.disturbed(ctx, "cuts", c, func(ctx context.Context, t *trial) error {
		for _, role := range t.victims {
			m := t.one(role)
			if err := wait.For(ctx, betweenFaults); err != nil {
				return err
			}
			t.struck("cut 20 s", role, m.Name)
			m.Proxy.Blackhole()
			err := wait.For(ctx, 20*time.Second)
			m.Proxy.Heal()
			if err != nil {
				return err
			}
		}
		if err := wait.For(ctx, betweenFaults); err != nil {
			return err
		}
		t.struck("cut 3 s", "all", "every process")
		for _, m := range t.Members("") {
			m.Proxy.Cut()
		}
		err := wait.For(ctx, 3*time.Second)
		for _, m := range t.Members("") {
			m.Proxy.Heal()
		}
		if err != nil {
			return err
		}
		return wait.For(ctx, betweenFaults)
	})
}

// natsRestarts kills the only NATS server and restarts it after 2 s, twice.
func natsRestarts(ctx context.Context, s *suite) (*report, error) {
	return s.disturbed(ctx, "nats", s.config("nats"), func(ctx context.Context, t *trial) error {
		if err := t.killNATS(ctx, t.NATS()[0], 2); err != nil {
			return err
		}
		return t.spied(ctx)
	})
}

// spied waits until a try to read another tenant's stream is decided: a gateway waits long for a log of a young JetStream, which may be
// written again.
func (t *trial) spied(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 4*spyPatience)
	defer cancel()
	for t.spy.refused.Load()+t.spy.leaked.Load() == 0 && ctx.Err() == nil {
		if err := wait.For(ctx, time.Second); err != nil {
			break // the report says that there was none
		}
	}
	return nil
}

// natsCluster kills each of three clustered NATS servers once.
func natsCluster(ctx context.Context, s *suite) (*report, error) {
	c := s.config("nats-cluster")
	c.NATSServers = 3
	return s.disturbed(ctx, "nats-cluster", c, func(ctx context.Context, t *trial) error {
		for _, server := range t.NATS() {
			if err := t.killNATS(ctx, server, 1); err != nil {
				return err
			}
		}
		return nil
	})
}

// natsGateway kills each of three clustered NATS servers once, and a gateway at the same moment. (A
// single server has the logs in its memory: the calls of such a gateway are lost, as
// docs/decisions/stream-resume.md says.)
func natsGateway(ctx context.Context, s *suite) (*report, error) {
	c := s.config("nats-gateway")
	c.NATSServers = 3
	return s.disturbed(ctx, "nats-gateway", c, func(ctx context.Context, t *trial) error {
		for _, server := range t.NATS() {
			if err := wait.For(ctx, betweenFaults); err != nil {
				return err
			}
			if err := t.killTogether(ctx, server, t.one(cluster.RoleGateway)); err != nil {
				return err
			}
		}
		return wait.For(ctx, betweenFaults)
	})
}

// killTogether kills a NATS server and another process, and restarts both after 2 s.
func (t *trial) killTogether(ctx context.Context, server *cluster.Process, m *cluster.Member) error {
	t.struck("kill nats and", m.Role, server.Name+", "+m.Name)
	if err := errors.Join(server.Kill(), m.Kill()); err != nil {
		return err
	}
	if err := t.restart(ctx, server, 2*time.Second); err != nil {
		return err
	}
	return t.restart(ctx, m.Process, 0)
}

func (t *trial) killNATS(ctx context.Context, server *cluster.Process, times int) error {
	for range times {
		if err := wait.For(ctx, betweenFaults); err != nil {
			return err
		}
		t.struck("kill", cluster.RoleNATS, server.Name)
		if err := server.Kill(); err != nil {
			return err
		}
		if err := t.restart(ctx, server, 2*time.Second); err != nil {
			return err
		}
	}
	return wait.For(ctx, betweenFaults)
}
