package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/e2e/badnet"
	"github.com/millrace/millrace/e2e/chaos/cluster"
)

// rolling: SIGTERM to every process in turn, each is started again when it has
// ended with exit code 0.
func rolling(ctx context.Context, s *suite) (*report, error) {
	return s.disturbed(ctx, "rolling", s.config("rolling"), func(ctx context.Context, t *trial) error {
		for _, m := range t.Members("") {
			if !slices.Contains(t.victims, m.Role) {
				continue
			}
			if err := t.terminate(ctx, m); err != nil {
				return err
			}
			if err := t.restart(ctx, m.Process, 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// updateGrace is --grace in an update: above the longest stream, however busy the machine is.
const updateGrace = 90 * time.Second

// rollingCheckpoint updates a cluster to another checkpoint under load.
func rollingCheckpoint(ctx context.Context, s *suite) (*report, error) {
	next := pool{name: "next checkpoint"}
	var err error
	if next.model, err = s.otherModel("next", otherWeights); err != nil {
		return nil, err
	}
	r, err := s.update(ctx, "rolling-checkpoint", s.config("rolling-checkpoint"), poolA, next)
	if r != nil {
		r.Least.Distinct = s.streams / 2
	}
	return r, err
}

// rollingBinary updates a cluster from an earlier commit's program to this one under load.
func rollingBinary(ctx context.Context, s *suite) (*report, error) {
	program, err := cluster.BuildCommit(ctx, s.builds, s.previous)
	if err != nil {
		return nil, err
	}
	c := s.config("rolling-binary")
	c.Accounts = "" // an earlier program has its own
	return s.update(ctx, "rolling-binary", c, pool{name: "commit " + s.previous, program: program}, poolA)
}

// update: the new processes are started beside the old ones. When they are ready, new connections
// go to their gateways, as by a load balancer, and the old processes are stopped: gateways first. Every
// answer is whole, by one of the two.
func (s *suite) update(ctx context.Context, name string, c cluster.Config, from, to pool) (_ *report, err error) {
	c.Args = append(c.Args, "--grace="+updateGrace.String())
	c.Members = nil
	c.Groups = poolOf(from, "")
	return s.phases(ctx, name, c, []pool{from, to}, func(ctx context.Context, t *trial) (least, error) {
		balanced, stop, err := t.balance(ctx)
		defer stop()
		if err != nil {
			return least{}, err
		}
		err = t.phase(ctx, "", func(ctx context.Context) error {
			old := t.Members("")
			if err := t.run.WaitTokens(ctx, int64(t.streams)); err != nil {
				return err
			}
			if err := t.Add(ctx, poolOf(to, "-new")...); err != nil {
				return err
			}
			redirect(balanced, t.Members(cluster.RoleGateway)[len(balanced):])
			for _, m := range old { // gateways are the first
				if err := t.terminate(ctx, m); err != nil {
					return err
				}
				t.Remove(m)
			}
			return t.run.WaitTokens(ctx, int64(t.streams))
		})
		l := t.expectation()
		l.Moves = 1 // with so long a grace most streams end where they are
		return l, err
	})
}

// balance puts an address of its own before each gateway; clients know no other.
func (t *trial) balance(ctx context.Context) (proxies []*badnet.Proxy, stop func(), err error) {
	var urls []string
	stop = func() {
		for _, p := range proxies {
			p.Close()
		}
	}
	for _, m := range t.Members(cluster.RoleGateway) {
		p, err := badnet.NewProxy(ctx, strings.TrimPrefix(m.URL, "http://"))
		if err != nil {
			return proxies, stop, err
		}
		proxies = append(proxies, p)
		urls = append(urls, "http://"+p.Addr())
	}
	return proxies, stop, t.use(urls)
}

func redirect(proxies []*badnet.Proxy, to []*cluster.Member) {
	for i, p := range proxies {
		p.Redirect(strings.TrimPrefix(to[i%len(to)].URL, "http://"))
	}
}

// poolOf is two processes of each role.
func poolOf(p pool, suffix string) (groups []cluster.Group) {
	for _, role := range cluster.Roles {
		groups = append(groups, cluster.Group{Role: role, Name: role + suffix, Count: 2, Program: p.program, Model: p.model, Args: p.args})
	}
	return groups
}

// terminate ends a process by SIGTERM, which has to work.
func (t *trial) terminate(ctx context.Context, m *cluster.Member) error {
	t.struck("SIGTERM", m.Role, m.Name)
	ending, cancel := context.WithTimeout(ctx, updateGrace+startPatience)
	defer cancel()
	return m.Terminate(ending)
}
