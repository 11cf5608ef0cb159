package main

import (
	"context"
	"slices"
	"time"

	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/chaos/workload"
	"github.com/millrace/millrace/e2e/wait"
)

// killEach kills (kill -9) a process of each role in turn at random moments and restarts it
// after a while. The other process of the role is always alive.
func killEach(ctx context.Context, s *suite) (*report, error) { return s.killed(ctx, "kills") }

// killGuided is killEach for streams with grammars, tools and reasoning.
func killGuided(ctx context.Context, s *suite) (*report, error) {
	const name = "guided"
	model, err := s.otherModel(name, toolsTemplate)
	if err != nil {
		return nil, err
	}
	c := s.config(name)
	c.Model = model
	return s.disturbed(ctx, name, c, func(ctx context.Context, t *trial) error {
		return t.killEach(ctx, func() error { return wait.For(ctx, t.between(time.Second, 4*time.Second)) })
	}, pool{name: name, model: model, kinds: append(slices.Clip(workload.Guided), workload.KindUnseeded)}) // see spy
}

func (s *suite) killed(ctx context.Context, name string) (*report, error) {
	return s.disturbed(ctx, name, s.config(name), func(ctx context.Context, t *trial) error {
		return t.killEach(ctx, func() error { return wait.For(ctx, t.between(time.Second, 4*time.Second)) })
	})
}

// killEach kills a process of each role in turn, each time after moment has returned.
func (t *trial) killEach(ctx context.Context, moment func() error) error {
	for i := range t.kills {
		if err := moment(); err != nil {
			return err
		}
		role := t.victims[i%len(t.victims)]
		if err := t.killAndRestart(ctx, t.one(role), t.between(0, 2*time.Second)); err != nil {
			return err
		}
	}
	return nil
}

// one returns a random process of a role.
func (t *trial) one(role string) *cluster.Member {
	members := t.Members(role)
	return members[t.random.IntN(len(members))]
}

// killAndRestart kills a process, restarts it and waits until it is ready.
func (t *trial) killAndRestart(ctx context.Context, m *cluster.Member, down time.Duration) error {
	t.struck("kill", m.Role, m.Name)
	if err := m.Kill(); err != nil {
		return err
	}
	return t.restart(ctx, m.Process, down)
}

func (t *trial) restart(ctx context.Context, p *cluster.Process, down time.Duration) error {
	if err := wait.For(ctx, down); err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return p.WaitReady(ctx)
}
