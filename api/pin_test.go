package api

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestARequestsKeyIsItsTenantsOwn(t *testing.T) {
	keys := map[string]bool{}
	for _, r := range []Request{
		{ID: "a"}, {ID: "a", Tenant: "t"}, {ID: "a", Tenant: "u"}, {ID: "a:b", Tenant: "t"}, {ID: "b", Tenant: "t:a"}, {ID: "t:a"},
	} {
		require.False(t, keys[r.Key()], "%+v", r)
		keys[r.Key()] = true
	}
	again := Request{ID: "a.1", First: "a", Tenant: "t"}
	require.Equal(t, (&Request{ID: "a", Tenant: "t"}).Key(), again.OriginKey())
}

func TestPromptsOfOtherIdsHaveOtherHashes(t *testing.T) {
	hashes := map[string]bool{}
	for _, ids := range [][]int32{nil, {0}, {1}, {256}, {1, 0}, {0, 1}} {
		hashes[HashPrompt(ids)] = true
	}
	require.Len(t, hashes, 6)
	require.Len(t, HashPrompt([]int32{1, 2}), 64)
}

func TestAFingerprintIsTheNumericsDigestAndEmptyWithoutOne(t *testing.T) {
	require.Empty(t, Pin{Text: "t"}.Fingerprint())
	require.Equal(t, "fp_abc", Pin{Numerics: "abc", Text: "t"}.Fingerprint())
	require.Equal(t, "fp_0123456789abcdef", Pin{Numerics: "0123456789abcdef0123"}.Fingerprint())
}
