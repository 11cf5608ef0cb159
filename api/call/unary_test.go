package call

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
)

func TestAUnaryCallStopsAtItsFirstError(t *testing.T) {
	bad := errors.New("bad")
	for failing, want := range map[string][]string{
		"":       {"decode body", "run", "encode"},
		"decode": {"decode body"},
		"run":    {"decode body", "run"},
		"encode": {"decode body", "run", "encode"},
	} {
		var got []string
		step := func(name, note string) error {
			if got = append(got, note); name == failing {
				return bad
			}
			return nil
		}
		engine := apitest.New(nil)
		unary := NewUnary(
			func(body []byte, models []api.Model) (int, error) {
				require.Equal(t, engine.Models(), models)
				return 1, step("decode", "decode "+string(body))
			},
			func(e api.Engine, _ context.Context, q int) (string, error) {
				require.Equal(t, engine, e)
				require.Equal(t, 1, q)
				return "two", step("run", "run")
			},
			func(q int, answer string, models []api.Model) ([]byte, error) {
				require.Equal(t, engine.Models(), models)
				require.Equal(t, 1, q)
				return []byte(answer), step("encode", "encode")
			})
		answer, err := unary(t.Context(), engine, []byte("body"))
		require.Equal(t, want, got)
		if failing == "" {
			require.NoError(t, err)
			require.Equal(t, "two", string(answer))
		} else {
			require.ErrorIs(t, err, bad, failing)
		}
	}
}
