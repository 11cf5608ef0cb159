package api_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

func TestAnErrorRepeatsAtMost64CharactersOfAValue(t *testing.T) {
	for value, want := range map[string]string{
		"": `""`, "m\n": `"m\n"`, strings.Repeat("é", 64): `"` + strings.Repeat("é", 64) + `"`,
		strings.Repeat("界", 65):    `"` + strings.Repeat("界", 64) + `"...`,
		strings.Repeat("x", 1<<20): `"` + strings.Repeat("x", 64) + `"...`,
	} {
		require.Equal(t, want, api.Quote(value))
	}
}
