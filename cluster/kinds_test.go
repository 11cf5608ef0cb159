package cluster

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metrics"
)

func TestKindsAreCountedByModelAndDigest(t *testing.T) {
	worker := func(numerics, class string) *Worker { return &Worker{Numerics: numerics, Class: class} }
	kinds := KindsOf([]*Member{
		{Model: "m", Text: "T", Worker: worker("A", "avx2")}, {Model: "m", Text: "T", Worker: worker("A", "avx2")},
		{Model: "m", Worker: worker("", "")},
		{Model: "m", Text: "U", Tokenizer: &Tokenizer{}}, {Model: "n", Text: "U", Detok: &Pool{}}, {Roles: []Role{Gateway}},
	})
	require.Len(t, kinds, 2)
	require.Equal(t, "workers: 1 of no digest, 2 of A (avx2)", kinds["m"].Workers())
	require.Equal(t, "processes: 1 of no digest, 2 of T, 1 of U", kinds["m"].Texts())
	require.Equal(t, "no workers", kinds["n"].Workers())
	require.Equal(t, "no workers", kinds["unknown"].Workers())
	require.Equal(t, "no processes", kinds["unknown"].Texts())
	many := &Kinds{Numerics: map[string]int{}}
	for i := range 20 {
		many.Numerics[fmt.Sprintf("%02d", i)] = 1
	}
	require.Contains(t, many.Workers(), "1 of 07, and 12 more")
}

func TestAMixedPoolIsInTheMetrics(t *testing.T) {
	s := natsServer(t)
	m := metrics.New(metrics.Build{})
	join := func(m *metrics.Metrics, numerics string) *Registry {
		r, err := Join(Config{
			Conn: connect(t, s), Beat: 10 * time.Millisecond, Dead: time.Hour, Key: NewKey(),
			Self:    func() Member { return Member{Model: "m", Text: "T", Worker: &Worker{Numerics: numerics}} },
			Metrics: m.Cluster(), Log: zerolog.Nop(),
		})
		require.NoError(t, err)
		t.Cleanup(r.Leave)
		return r
	}
	join(m, "A")
	shows := func(n int) func() bool {
		return func() bool {
			page := httptest.NewRecorder()
			m.Handler().ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
			text := page.Body.String()
			return strings.Contains(text, fmt.Sprintf("millrace_numerics_classes{model=%q} %d", "m", n)) &&
				strings.Contains(text, `millrace_text_classes{model="m"} 1`)
		}
	}
	require.Eventually(t, shows(1), 20*time.Second, time.Millisecond)
	other := join(metrics.New(metrics.Build{}), "B")
	require.Eventually(t, shows(2), 20*time.Second, time.Millisecond)
	other.Leave()
	require.Eventually(t, shows(1), 20*time.Second, time.Millisecond)
}
