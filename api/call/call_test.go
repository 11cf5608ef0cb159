package call

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
)

func TestARenamedCallIsTheOneThatHadTheNameFromTheStart(t *testing.T) {
	named := func(id string, seed uint64) *Call {
		c := &Call{ID: id}
		for _, suffix := range []string{"-0", "-1"} {
			c.Requests = append(c.Requests, &api.Request{ID: id + suffix, Sampling: sample.Params{Seed: seed}})
		}
		return c
	}
	c := named("cmpl-a", SeedOf("cmpl-a"))
	c.Rename("b")
	require.Equal(t, named("cmpl-b", SeedOf("cmpl-b")), c)
	require.NotEqual(t, SeedOf("cmpl-a"), SeedOf("cmpl-b"))
	c = named("cmpl-a", 7)
	c.Rename("b")
	require.Equal(t, named("cmpl-b", 7), c, "a seed that the client chose stays")
}
