package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryAttackIsInTheDocs finds each attack in docs/security.md, which says what stops it.
func TestEveryAttackIsInTheDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/security.md")
	require.NoError(t, err)
	names := map[string]bool{}
	for _, a := range attacks() {
		require.False(t, names[a.name], "%s: listed twice", a.name)
		names[a.name] = true
		require.Contains(t, string(text), "| "+a.name+" |", "a row of the table")
		require.Contains(t, targets, a.target, a.name)
	}
	require.Equal(t, len(names), strings.Count(string(text), "| nats: ")+strings.Count(string(text), "| http: ")+strings.Count(string(text),
		"| tls: ")+
		strings.Count(string(text), "| tenants: ")+strings.Count(string(text), "| keys: ")+strings.Count(string(text), "| cost: ")+
		strings.Count(string(text), "| files: ")+strings.Count(string(text), "| start: ")+strings.Count(string(text), "| storage: "),
		"rows of attacks that are gone")
}

// TestAReportWithoutAttacksFails also covers a server that stayed slow or large.
func TestAReportWithoutAttacksFails(t *testing.T) {
	good := outcome{Name: "x", Normal: &normal{Good: 1}}
	equal := &comparison{Target: "keys", P50: 1, Control: 1, Resident: 100, Expected: 100}
	for name, c := range map[string]struct {
		r    report
		pass bool
	}{
		"nothing ran": {report{}, false},
		"all good":    {report{Attacks: []outcome{good}, Comparisons: []*comparison{equal}}, true},
		"one got in":  {report{Attacks: []outcome{good, {Name: "y", Error: "in"}}}, false},
		"slow after it": {report{Attacks: []outcome{good}, Comparisons: []*comparison{{P50: 1.21, Control: 1, Resident: 1, Expected: 1}}},
			false},
		"large after it": {report{Attacks: []outcome{good}, Comparisons: []*comparison{{P50: 1, Control: 1, Resident: 111, Expected: 100}}},
			false},
	} {
		c.r.judge()
		require.Equal(t, c.pass, c.r.Pass, name)
	}
}

func TestNormalRequestsThatFailOrAreMissingFailAnAttack(t *testing.T) {
	require.NoError(t, (&normal{Good: 1}).verdict())
	require.Error(t, (&normal{}).verdict())
	require.ErrorContains(t, (&normal{Good: 9, Bad: 1, Problem: "why"}).verdict(), "1 of 10 normal requests failed, the first: why")
}
