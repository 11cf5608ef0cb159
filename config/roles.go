package config

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/cluster"
)

// Roles are the parts of the pipeline that a process has, and the timeouts between processes.
type Roles struct {
	Names           []string      // of cluster.Roles and cluster.Computing
	Heartbeat       time.Duration // between two heartbeats
	NodeTimeout     time.Duration // silence after which a process is considered dead
	FailoverTimeout time.Duration // longest wait of a request for a worker to continue at
}

// Register adds the settings to a command's flags.
func (r *Roles) Register(f *pflag.FlagSet) {
	f.StringSliceVar(&r.Names, "roles", names(cluster.Roles()),
		"roles of this process; processes on the same NATS server have the others; prefill or decode instead of compute")
	f.DurationVar(&r.Heartbeat, "heartbeat", cluster.DefaultBeat, "time between two heartbeats of a process")
	f.DurationVar(&r.NodeTimeout, "node-timeout", cluster.DefaultDead,
		"silence after which a process is considered dead and its sequences fail over")
	f.DurationVar(&r.FailoverTimeout, "failover-timeout", time.Minute,
		"longest wait of a request for a worker that can continue it, before it fails")
}

func (r *Roles) validate() []error {
	var errs []error
	for _, name := range r.Names {
		errs = append(errs, oneOf("roles", name, names(allRoles())...))
	}
	if len(r.Names) == 0 {
		errs = append(errs, Usagef("--roles: found none, expected some of %s", strings.Join(names(allRoles()), ",")))
	}
	computing := slices.DeleteFunc(cluster.Computing(), func(role cluster.Role) bool { return !r.Has(role) })
	if len(computing) > 1 {
		errs = append(errs, Usagef("--roles: found %s, expected at most one of %s", strings.Join(names(computing), " and "),
			strings.Join(names(cluster.Computing()), ",")))
	}
	if r.NodeTimeout < 2*r.Heartbeat {
		errs = append(errs, Usagef("--node-timeout: found %s, expected at least twice --heartbeat, %s", r.NodeTimeout, 2*r.Heartbeat))
	}
	return append(errs, atLeast("heartbeat", r.Heartbeat, time.Millisecond), atLeast("failover-timeout", r.FailoverTimeout, 0))
}

// Has says whether the process has a role.
func (r *Roles) Has(role cluster.Role) bool {
	return slices.Contains(r.Names, string(role))
}

// List are the roles in the order of the pipeline.
func (r *Roles) List() []cluster.Role {
	var list []cluster.Role
	for _, role := range allRoles() {
		if r.Has(role) {
			list = append(list, role)
		}
	}
	return list
}

// NeedsModel says whether a part of the model's directory is read.
func (r *Roles) NeedsModel() bool {
	return r.Has(cluster.Tokenize) || r.Has(cluster.Detok) || r.Computes()
}

// Computes says whether the process runs the model.
func (r *Roles) Computes() bool { return slices.ContainsFunc(cluster.Computing(), r.Has) }

func allRoles() []cluster.Role { return append(cluster.Roles(), cluster.Prefill, cluster.Decode) }

func names(roles []cluster.Role) (list []string) {
	for _, r := range roles {
		list = append(list, string(r))
	}
	return list
}
