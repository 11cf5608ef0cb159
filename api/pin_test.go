package api

import (
	"testing"
	"time"

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
}

func TestAllAttemptsOfARequestHaveItsOriginKeyAndNoLaterRequestHas(t *testing.T) {
	at := time.Unix(1_800_000_000, 7)
	first := Request{ID: "a", Tenant: "t", Arrival: at}
	require.Equal(t, first.OriginKey(), (&Request{ID: "a.1", First: "a", Tenant: "t", Arrival: at}).OriginKey())
	for _, other := range []Request{
		{ID: "a", Tenant: "t", Arrival: at.Add(1)}, {ID: "a", Tenant: "u", Arrival: at}, {ID: "b", Tenant: "t", Arrival: at},
		{ID: "a.1", Tenant: "t", Arrival: at},
	} {
		require.NotEqual(t, first.OriginKey(), other.OriginKey(), "%+v", other)
	}
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

func TestAFingerprintNamesTheEvictionOfKeysAndValues(t *testing.T) {
	require.Empty(t, Pin{Numerics: "0123456789abcdef0123"}.KV())
	p := Pin{Numerics: "0123456789abcdef0123-streaming-4-1020"}
	require.Equal(t, "streaming-4-1020", p.KV())
	require.Equal(t, "fp_0123456789abcdef-streaming-4-1020", p.Fingerprint())
}
