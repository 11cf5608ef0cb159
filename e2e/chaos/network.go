package main

import (
	"context"
	"time"

	"github.com/millrace/millrace/e2e/chaos/cluster"
)

// afterwards is how long there is load after a fault is over, before the next.
const afterwards = 3 * time.Second

// stalls: SIGSTOP to one process of each role, for much longer than it takes to
// notice; then it goes on where it was.
func stalls(ctx context.Context, s *suite) (*report, error) {
	return s.disturbed(ctx, "stalls", s.config("stalls"), func(ctx context.Context, t *trial) error {
		for _, role := range t.victims {
			m := t.one(role)
			if err := pause(ctx, afterwards); err != nil {
				return err
			}
			t.struck("SIGSTOP "+role, m.Name)
			if err := m.Stop(); err != nil {
				return err
			}
			if err := pause(ctx, 10*time.Second); err != nil {
				return err
			}
			if err := m.Continue(); err != nil {
				return err
			}
		}
		return pause(ctx, afterwards)
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
			if err := pause(ctx, afterwards); err != nil {
				return err
			}
			t.struck("cut "+role+" 20 s", m.Name)
			m.Proxy.Blackhole()
			err := pause(ctx, 20*time.Second)
			m.Proxy.Heal()
			if err != nil {
				return err
			}
		}
		if err := pause(ctx, afterwards); err != nil {
			return err
		}
		t.struck("cut all 3 s", "every process")
		for _, m := range t.Members("") {
			m.Proxy.Cut()
		}
		err := pause(ctx, 3*time.Second)
		for _, m := range t.Members("") {
			m.Proxy.Heal()
		}
		if err != nil {
			return err
		}
		return pause(ctx, afterwards)
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

func (t *trial) killNATS(ctx context.Context, server *cluster.Process, times int) error {
	for range times {
		if err := pause(ctx, afterwards); err != nil {
			return err
		}
		t.struck("kill nats", server.Name)
		if err := server.Kill(); err != nil {
			return err
		}
		if err := t.restart(ctx, server, 2*time.Second); err != nil {
			return err
		}
	}
	return pause(ctx, afterwards)
}
