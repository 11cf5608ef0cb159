package main

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/chaos/workload"
)

func TestAScenarioThatSawTooLittleDoesNotPass(t *testing.T) {
	enough := report{
		Outcome: workload.Outcome{Streams: 10, Completed: 10, NoEqual: 1}, Hits: 2, Migrations: 1, Takeovers: 1, SpyRefused: 1, Distinct: 5,
		Least: least{Streams: 10, Hits: 2, Moves: 2, Refused: 1, NoEqual: 1, Distinct: 5},
	}
	require.NoError(t, enough.missed())
	for name, lack := range map[string]func(*report){
		"streams":              func(r *report) { r.Streams = 9 },
		"running streams":      func(r *report) { r.Hits = 1 },
		"migrations":           func(r *report) { r.Migrations = 0 },
		"takeovers":            func(r *report) { r.Takeovers = 0 },
		"refused tries":        func(r *report) { r.SpyRefused = 0 },
		"equal worker":         func(r *report) { r.NoEqual = 0 },
		"answer differently":   func(r *report) { r.Distinct = 4 },
		"another tenant's key": func(r *report) { r.SpyLeaked = 1 },
	} {
		r := enough
		lack(&r)
		require.ErrorContains(t, r.missed(), name)
	}
	require.False(t, (&workload.Outcome{}).Good(), "no stream at all")
}

func TestEachLossOfAProcessWithStreamsHasToMoveSome(t *testing.T) {
	tr := &trial{suite: &suite{streams: 7}}
	for _, role := range []string{cluster.RoleCompute, cluster.RoleTokenize, cluster.RoleNATS, cluster.RoleGateway, cluster.RoleDetok} {
		tr.faults = append(tr.faults, fault{kind: "kill " + role, role: role, at: time.Unix(1, 0)})
	}
	require.Equal(t, least{Streams: 7, Hits: 5, Moves: 3, Refused: 1}, tr.expectation())
	require.Equal(t, least{Streams: 1, Hits: 1, Refused: 1}, (&trial{suite: &suite{}}).expectation(), "without faults or streams it fails")
}

func TestRunsAddUpInEveryNumber(t *testing.T) {
	one := report{Faults: map[string]int{"kill": 1}, Migrations: 1, Takeovers: 1}
	numbers := 0
	for _, v := range []any{&one, &one.Outcome, &one.Least} {
		for _, f := range reflect.ValueOf(v).Elem().Fields() {
			if f.Kind() == reflect.Int {
				f.SetInt(1)
				numbers++
			}
		}
	}
	require.Len(t, one.counts(), numbers)
	sum := report{Faults: map[string]int{}}
	sum.add(&one)
	sum.add(&one)
	for i, n := range sum.counts() {
		require.Equal(t, 2, *n, "number %d", i)
	}
	require.Equal(t, map[string]int{"kill": 2}, sum.Faults)
	require.Equal(t, 4.0, sum.Migrations+sum.Takeovers)
}
