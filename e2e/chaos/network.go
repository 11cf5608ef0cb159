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

// stalls: SIGSTOP to one process of each role, for much longer than it takes to
// notice. Then it continues.
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

// cuts: the network between one process of each role and NATS drops everything
// for 20 s; then connections of every process at once are closed for 3 s.
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

// natsRestarts: the one NATS server is killed and comes back after 2 s, twice.
func natsRestarts(ctx context.Context, s *suite) (*report, error) {
	return s.disturbed(ctx, "nats", s.config("nats"), func(ctx context.Context, t *trial) error {
		return t.killNATS(ctx, t.NATS()[0], 2)
	})
}

// natsCluster: of three NATS servers in a cluster each is killed once.
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

// natsGateway: of three NATS servers in a cluster each is killed once, and a gateway with it at the
// same moment. (With one server, whose logs are in its memory, the calls of such a gateway are
// lost: see docs/decisions/stream-resume.md.)
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

// killTogether kills a NATS server and another process; both come back after 2 s.
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
