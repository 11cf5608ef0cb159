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
	Names           []string      // of cluster.Roles
	Heartbeat       time.Duration // between two heartbeats
	NodeTimeout     time.Duration // silence after which a process is considered dead
	FailoverTimeout time.Duration // longest wait of a request for a worker to continue at
}

// Register adds the settings to a command's flags.
func (r *Roles) Register(f *pflag.FlagSet) {
	f.StringSliceVar(&r.Names, "roles", roleNames(), "roles of this process; processes on the same NATS server have the others")
	f.DurationVar(&r.Heartbeat, "heartbeat", cluster.DefaultBeat, "time between two heartbeats of a process")
	f.DurationVar(&r.NodeTimeout, "node-timeout", cluster.DefaultDead, "silence after which a process is considered dead and its sequences fail over")
	f.DurationVar(&r.FailoverTimeout, "failover-timeout", time.Minute, "longest wait of a request for a worker that can continue it, before it fails")
	rename(f, "resume-timeout", "failover-timeout")
}

func (r *Roles) validate() []error {
	var errs []error
	for _, name := range r.Names {
		errs = append(errs, oneOf("roles", name, roleNames()...))
	}
	if len(r.Names) == 0 {
		errs = append(errs, Usagef("--roles: found none, expected some of %s", strings.Join(roleNames(), ",")))
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
	for _, role := range cluster.Roles() {
		if r.Has(role) {
			list = append(list, role)
		}
	}
	return list
}

// NeedsModel says whether a part of the model's directory is read.
func (r *Roles) NeedsModel() bool {
	return r.Has(cluster.Tokenize) || r.Has(cluster.Compute) || r.Has(cluster.Detok)
}

func roleNames() []string {
	var names []string
	for _, r := range cluster.Roles() {
		names = append(names, string(r))
	}
	return names
}
