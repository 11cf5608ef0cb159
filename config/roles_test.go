package config_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/config"
)

func TestRolesAreAllWithoutASettingAndKeepThePipelinesOrder(t *testing.T) {
	s := serve(t)
	require.Equal(t, cluster.Roles(), s.Roles.List())
	require.Equal(t, cluster.DefaultBeat, s.Roles.Heartbeat)
	require.Equal(t, cluster.DefaultDead, s.Roles.NodeTimeout)

	s = serve(t, "--roles", "detok,gateway", "--roles", "detok")
	require.NoError(t, s.Validate())
	require.Equal(t, []cluster.Role{cluster.Gateway, cluster.Detok}, s.Roles.List())
	require.True(t, s.Roles.Has(cluster.Detok))
	require.False(t, s.Roles.Has(cluster.Compute))
}

func TestEveryRoleButTheGatewayNeedsTheModel(t *testing.T) {
	for _, role := range append(cluster.Roles(), cluster.Prefill, cluster.Decode) {
		r := config.Roles{Names: []string{string(role)}}
		require.Equal(t, role != cluster.Gateway, r.NeedsModel(), role)
	}
	both := config.Roles{Names: []string{"gateway", "compute"}}
	require.True(t, both.NeedsModel())
	var none config.Roles
	require.False(t, none.NeedsModel())
}

func TestRolesThatCannotServeAreErrors(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{args: []string{"--roles", "gateway,worker"},
			want: `--roles: found "worker", expected gateway or tokenize or compute or detok or prefill or decode`},
		{args: []string{"--roles", "Gateway"},
			want: `--roles: found "Gateway", expected gateway or tokenize or compute or detok or prefill or decode`},
		{args: []string{"--roles", "gateway,,detok"},
			want: `--roles: found "", expected gateway or tokenize or compute or detok or prefill or decode`},
		{args: []string{"--roles", ""}, want: "--roles: found none, expected some of gateway,tokenize,compute,detok,prefill,decode"},
		{args: []string{"--roles", "compute,prefill"},
			want: "--roles: found compute and prefill, expected at most one of compute,prefill,decode"},
		{args: []string{"--node-timeout", "499ms"}, want: "--node-timeout: found 499ms, expected at least twice --heartbeat, 500ms"},
		{args: []string{"--heartbeat", "2s"}, want: "--node-timeout: found 1s, expected at least twice --heartbeat, 4s"},
		{args: []string{"--heartbeat", "0"}, want: "--heartbeat: found 0s, expected at least 1ms"},
		{args: []string{"--heartbeat", "999us"}, want: "--heartbeat: found 999µs, expected at least 1ms"},
		{args: []string{"--failover-timeout", "-1s"}, want: "--failover-timeout: found -1s, expected at least 0s"},
		{args: []string{"--roles", "a", "--heartbeat", "1s", "--failover-timeout", "-1s"}, want: `--roles: found "a", expected gateway or tokenize or compute or detok or prefill or decode
--node-timeout: found 1s, expected at least twice --heartbeat, 2s
--failover-timeout: found -1s, expected at least 0s`},
	} {
		err := serve(t, tt.args...).Validate()
		require.ErrorIs(t, err, config.ErrUsage, "%v", tt.args)
		require.EqualError(t, err, tt.want)
	}
	for _, args := range [][]string{{"--node-timeout", "500ms"}, {"--heartbeat", "1ms"}, {"--failover-timeout", "0"}} {
		require.NoError(t, serve(t, args...).Validate(), "%v", args)
	}
	s := serve(t)
	s.Roles.NodeTimeout = 2*s.Roles.Heartbeat - time.Nanosecond
	require.ErrorContains(t, s.Validate(), "--node-timeout")
}
