package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/chaos/workload"
	"github.com/millrace/millrace/e2e/wait"
)

// variant is a pool B beside the suite's pool A. It differs in one thing.
type variant struct {
	name  string
	args  []string
	model func(from, to string) error // makes B's model from A's; nil: the same
	text  bool                        // tokenizers and detokenizers differ too: a request needs all three roles with the same text digest
	kinds []string                    // kinds of streams; none: all
	few   bool                        // few answers differ: those in which the last bit of a number decides
}

var variants = []variant{
	{name: "class", args: []string{"--isa=portable"}, few: true},
	{name: "weights", args: []string{"--weights=int8"}},
	{name: "kv", args: []string{"--kv-type=int8"}},
	{name: "checkpoint", model: otherWeights},
	{name: "template", model: otherTemplate, text: true, kinds: []string{workload.KindChat}},
}

// roles returns the roles of the processes that differ.
func (v *variant) roles() []string {
	if v.text {
		return []string{cluster.RoleTokenize, cluster.RoleCompute, cluster.RoleDetok}
	}
	return []string{cluster.RoleCompute}
}

// mixedScenarios returns a scenario for each variant.
func mixedScenarios() (all []scenario) {
	for _, v := range variants {
		all = append(all, scenario{"mixed-" + v.name, func(ctx context.Context, s *suite) (*report, error) { return s.mixed(ctx, &v) }})
	}
	return all
}

// pools returns A and the variant's B. It makes the model of B if that differs.
func (s *suite) pools(v *variant) (a, b pool, err error) {
	a, b = poolA, pool{name: "B " + v.name, args: v.args}
	if len(v.kinds) > 0 { // their answers are not those of all kinds
		a.name, a.kinds, b.kinds = "A for "+v.name, v.kinds, v.kinds
	}
	if v.model != nil {
		b.model, err = s.otherModel(v.name, v.model)
	}
	return a, b, err
}

// mixed runs two processes of A and one of B. First it kills one process at a time and restarts it
// at once: an equal process exists, or soon does, and every stream is complete. Then all processes of A
// are down for longer than a request waits, and after that B is: their streams end with no_equal_worker,
// and the others are complete. Every answer is one of A's or one of B's.
func (s *suite) mixed(ctx context.Context, v *variant) (_ *report, err error) {
	a, b, err := s.pools(v)
	if err != nil {
		return nil, err
	}
	name := "mixed-" + v.name
	c := s.config(name)
	c.Args = append(c.Args, "--failover-timeout="+s.resume.String())
	for _, role := range v.roles() {
		c.Groups = append(c.Groups, cluster.Group{Role: role, Name: role + "-b", Count: 1, Model: b.model, Args: b.args})
	}
	return s.phases(ctx, name, c, []pool{a, b}, func(ctx context.Context, t *trial) (least, error) {
		one := func() error { return wait.For(ctx, t.between(500*time.Millisecond, 1500*time.Millisecond)) }
		last := 3 * len(v.roles()) // kills of the two phases without an equal
		if err := t.phase(ctx, "", func(ctx context.Context) error { return t.killMixed(ctx, v, t.kills-last, one) }); err != nil {
			return least{}, err
		}
		if err := t.phase(ctx, a.name, func(ctx context.Context) error { return t.without(ctx, t.alike(v, "")) }); err != nil {
			return least{}, err
		}
		err := t.phase(ctx, b.name, func(ctx context.Context) error { return t.without(ctx, t.alike(v, "-b")) })
		l := t.expectation()
		l.NoEqual, l.Distinct = 1, t.streams/2
		l.Hits -= last // streams at these kills wait or end: they may have no tokens after them
		if v.few {
			l.Distinct = t.streams / 10
		}
		if v.text {
			l.Refused = 0 // chats have a seed; see spy
		}
		return l, err
	})
}

// alike returns the processes of one pool of a variant.
func (t *trial) alike(v *variant, suffix string) (some []*cluster.Member) {
	for _, m := range t.Members("") {
		if slices.Contains(v.roles(), m.Role) && strings.HasSuffix(m.Group, "-b") == (suffix != "") {
			some = append(some, m)
		}
	}
	return some
}

// killMixed kills one process at a time: mostly those that differ, of both pools, and one of each other role.
func (t *trial) killMixed(ctx context.Context, v *variant, kills int, moment func() error) error {
	var turns [][]*cluster.Member
	for _, role := range cluster.Roles {
		if !slices.Contains(v.roles(), role) {
			turns = append(turns, t.Members(role))
		}
	}
	turns = slices.Insert(turns, len(turns)/2, t.alike(v, ""), t.alike(v, "-b"))
	turns = append(turns, t.alike(v, ""))
	for i := range kills {
		if err := moment(); err != nil {
			return err
		}
		some := turns[i%len(turns)]
		if err := t.killAndRestart(ctx, some[t.random.IntN(len(some))], 0); err != nil {
			return err
		}
	}
	return moment()
}

// without kills all of the given processes. It restarts them when no request waits for them any more.
func (t *trial) without(ctx context.Context, some []*cluster.Member) error {
	load := min(betweenFaults, t.resume/3)
	if err := wait.For(ctx, load); err != nil {
		return err
	}
	for _, m := range some {
		t.struck("kill", m.Role, m.Name)
		if err := m.Kill(); err != nil {
			return err
		}
	}
	if err := wait.For(ctx, t.resume+t.resume/5); err != nil {
		return err
	}
	for _, m := range some {
		if err := t.restart(ctx, m.Process, 0); err != nil {
			return err
		}
	}
	return wait.For(ctx, load)
}

// phases runs a scenario of several phases. Each has its own load and its own verdict.
func (s *suite) phases(ctx context.Context, name string, c cluster.Config, pools []pool,
	run func(context.Context, *trial) (least, error)) (_ *report, err error) {
	begin := time.Now()
	t, stop, err := s.open(ctx, name, c, pools...)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return nil, err
	}
	least, failed := run(ctx, t)
	r, err := t.report(ctx, name, t.all)
	r.Least = least
	if len(t.oracles) > 1 {
		r.Distinct = workload.Distinct(t.oracles[0], t.oracles[1])
	}
	r.Wrong = append(t.wrong, r.Wrong...)
	r.Seconds = time.Since(begin).Seconds()
	if failed == nil && len(t.wrong) > 0 {
		failed = fmt.Errorf("%d phases broke their promise", len(t.wrong))
	}
	return r, errors.Join(failed, err, t.whole(ctx))
}

// phase runs the streams while harm is done. Only streams of the pool that is away may end as
// no_equal_worker; "": none may.
func (t *trial) phase(ctx context.Context, away string, harm func(context.Context) error) error {
	results, err := t.harmed(ctx, func(ctx context.Context, _ *trial) error { return harm(ctx) })
	t.all = append(t.all, results...)
	o := workload.Judge(t.oracles, results)
	fmt.Fprintf(t.out, "  away: %q: %d streams, %d whole %v, %d without an equal %v, %d lost, %d spliced\n", away, o.Streams, o.Completed,
		o.ByKind, o.NoEqual, o.EndedOf, o.Lost, o.Spliced)
	for _, kind := range slices.Sorted(maps.Keys(o.EndedOf)) {
		if kind != away {
			t.wrong = append(t.wrong, fmt.Sprintf("%d streams of %s ended as no_equal_worker while one of its processes was there",
				o.EndedOf[kind], kind))
		}
	}
	if away == "" && o.NoEqual > 0 {
		t.wrong = append(t.wrong, fmt.Sprintf("%d streams ended as no_equal_worker while each pool was there", o.NoEqual))
	}
	return err
}
