package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/faultproxy"
)

// rolling sends SIGTERM to every process in turn and restarts it when it has
// ended with exit code 0.
func rolling(ctx context.Context, s *suite) (*report, error) {
	return s.disturbed(ctx, "rolling", s.config("rolling"), func(ctx context.Context, t *trial) error {
		if err := t.run.WaitTokens(ctx, int64(t.streams)); err != nil { // streams run at the first fault
			return err
		}
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
		t.watch.look(ctx)
		return t.recomputed()
	})
}

// updateGrace is --grace in an update. It is longer than any stream, on a busy machine too.
const updateGrace = 90 * time.Second

// rollingCheckpoint updates a cluster to another checkpoint under load.
func rollingCheckpoint(ctx context.Context, s *suite) (*report, error) {
	next := pool{name: "next checkpoint"}
	var err error
	if next.model, err = s.otherModel("next", otherWeights); err != nil {
		return nil, err
	}
	r, err := s.update(ctx, "rolling-checkpoint", s.config("rolling-checkpoint"), poolA, next, false)
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
	c.Accounts = "" // an earlier program has its own configuration
	return s.update(ctx, "rolling-binary", c, pool{name: "commit " + s.previous, program: program}, poolA, true)
}

// update starts the new processes beside the old ones. When they are ready, new connections go to their
// gateways, as a load balancer does it, and the old processes are stopped, gateways first. If the versions
// differ, all old gateways but one are stopped before that: the last one takes over their calls and finishes
// them. Every answer is whole, from one of the two versions.
func (s *suite) update(ctx context.Context, name string, c cluster.Config, from, to pool, versions bool) (_ *report, err error) {
	c.Args = append(c.Args, "--grace="+updateGrace.String())
	c.Members = nil
	c.Groups = poolOf(from, "")
	return s.phases(ctx, name, c, []pool{from, to}, func(ctx context.Context, t *trial) (least, error) {
		t.run.OwnIDs = versions
		balanced, stop, err := t.balance(ctx)
		defer stop()
		if err != nil {
			return least{}, err
		}
		err = t.phase(ctx, "", func(ctx context.Context) error {
			if err := t.run.WaitTokens(ctx, int64(t.streams)); err != nil {
				return err
			}
			if versions {
				gateways := t.Members(cluster.RoleGateway)
				redirect(balanced, gateways[1:])
				if err := t.retire(ctx, gateways[:1]); err != nil {
					return err
				}
			}
			old := t.Members("") // gateways come first
			if err := t.Add(ctx, poolOf(to, "-new")...); err != nil {
				return err
			}
			redirect(balanced, t.Members("")[len(old):])
			if err := t.retire(ctx, old); err != nil {
				return err
			}
			return t.run.WaitTokens(ctx, int64(t.streams))
		})
		l := t.expectation()
		l.Moves = 1 // with this grace period most streams end where they are
		return l, err
	})
}

// retire stops processes and removes them from the cluster, one after the other.
func (t *trial) retire(ctx context.Context, some []*cluster.Member) error {
	for _, m := range some {
		if err := t.terminate(ctx, m); err != nil {
			return err
		}
		t.Remove(m)
	}
	return nil
}

// balance puts a proxy before each gateway and gives the clients the addresses of the proxies.
func (t *trial) balance(ctx context.Context) (proxies []*faultproxy.Proxy, stop func(), err error) {
	var urls []string
	stop = func() {
		for _, p := range proxies {
			p.Close()
		}
	}
	for _, m := range t.Members(cluster.RoleGateway) {
		p, err := faultproxy.NewProxy(ctx, strings.TrimPrefix(m.URL, "http://"))
		if err != nil {
			return proxies, stop, err
		}
		proxies = append(proxies, p)
		urls = append(urls, "http://"+p.Addr())
	}
	return proxies, stop, t.use(urls)
}

// redirect sends new connections of the proxies to the gateways among some processes.
func redirect(proxies []*faultproxy.Proxy, to []*cluster.Member) {
	to = slices.DeleteFunc(slices.Clone(to), func(m *cluster.Member) bool { return m.Role != cluster.RoleGateway })
	for i, p := range proxies {
		p.Redirect(strings.TrimPrefix(to[i%len(to)].URL, "http://"))
	}
}

// poolOf returns two processes of each role.
func poolOf(p pool, suffix string) (groups []cluster.Group) {
	for _, role := range cluster.Roles {
		groups = append(groups, cluster.Group{Role: role, Name: role + suffix, Count: 2, Program: p.program, Model: p.model, Args: p.args})
	}
	return groups
}

// terminate ends a process by SIGTERM. Any exit code but 0 is an error.
func (t *trial) terminate(ctx context.Context, m *cluster.Member) error {
	t.struck("SIGTERM", m.Role, m.Name)
	ending, cancel := context.WithTimeout(ctx, updateGrace+startPatience)
	defer cancel()
	return m.Terminate(ending)
}
