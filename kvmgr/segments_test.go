package kvmgr

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBeamSearchUsesTheSlabsOfEquation3 at every step of the response: the
// prompt once, and for each beam a slab for each 16 tokens.
func TestBeamSearchUsesTheSlabsOfEquation3(t *testing.T) {
	for _, s := range []Segments{
		{Prompt: 1, Response: 1, Beams: 1}, {Prompt: 16, Response: 16, Beams: 4}, {Prompt: 17, Response: 33, Beams: 3},
		{Prompt: 100, Response: 77, Beams: 8}, {Prompt: 1024, Response: 128, Beams: 4},
	} {
		const batch = 3
		one := SegmentSlabs(s, 16)
		m := newManager(t, batch*one)
		for seq := range Seq(batch) {
			if _, err := m.ReserveSegments(seq, s, Prompt{}); err != nil {
				t.Fatal(err)
			}
		}
		if got := m.Stats(); got.Promised != batch*one || got.Free != 0 {
			t.Fatalf("%+v: reserved %+v, expected %d slabs", s, got, batch*one)
		}
		for n := 1; n <= s.Response; n++ {
			for seq := range Seq(batch) {
				if _, err := m.Lease(seq, s.Prompt+n); err != nil {
					t.Fatal(err)
				}
			}
			now := Segments{Prompt: (s.Prompt + 15) / 16 * 16, Response: n, Beams: s.Beams}
			if got, want := uint64(m.Stats().Used)*16, SegmentBytes(now, batch, 16, 1); got != want {
				t.Fatalf("%+v after %d tokens: slabs of %d tokens, by equation (3) %d", s, n, got, want)
			}
		}
		for seq := range Seq(batch) {
			if freed := must[int](t)(m.Release(seq)); freed != one {
				t.Fatalf("%+v: release freed %d slabs, expected %d", s, freed, one)
			}
		}
	}
}

// TestPaperMemoryOfGPTJ checks figure 4 of arXiv:2401.05391 with the paper's own
// table 1, which gives GPT-J 32 layers of 32 heads of 128, in float16.
func TestPaperMemoryOfGPTJ(t *testing.T) {
	const tokenBytes = 2 * 32 * 32 * 128 * 2 // equation (1)
	s := Segments{Prompt: 1024, Response: 1024, Beams: 4}
	standard, segment := StandardBytes(s, 32, tokenBytes), SegmentBytes(s, 32, 16, tokenBytes)
	if got := fmt.Sprintf("%.0f GB against %.0f GB", float64(segment)/1e9, float64(standard)/1e9); got != "86 GB against 137 GB" {
		t.Error(got)
	}
	// The same in slabs, as the manager counts them.
	slabs := 32 * SegmentSlabs(s, 16)
	if uint64(slabs)*16*tokenBytes != segment {
		t.Errorf("%d slabs of 16 tokens, by equation (3) %d bytes", slabs, segment)
	}
	t.Logf("GPT-J as in table 1, batch 32, 4 beams, 1024/1024: segment %d bytes (%d slabs), standard %d bytes", segment, slabs, standard)
}

func TestBeamSearchIsAdmittedExactly(t *testing.T) {
	s := Segments{Prompt: 20, Response: 18, Beams: 3} // 2 + 3*2
	m := newManager(t, 9)
	if _, err := m.ReserveSegments(1, s, Prompt{}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.ReserveSegments(1, s, Prompt{}); !errors.Is(err, ErrSequenceExists) {
		t.Errorf("twice: %v", err)
	}
	if _, err := m.ReserveSegments(2, Segments{Prompt: 1, Response: 1, Beams: 1}, Prompt{}); !errors.Is(err, ErrNoSlabs) {
		t.Errorf("2 slabs of the 1 that is left: %v", err)
	}
	if _, err := m.ReserveSegments(2, Segments{Prompt: 16, Response: 16, Beams: 9}, Prompt{}); !errors.Is(err, ErrNeverFits) {
		t.Errorf("10 slabs of 9: %v", err)
	}
	for _, bad := range []Segments{{0, 1, 1}, {1, 0, 1}, {1, 1, 0}} {
		if _, err := m.ReserveSegments(2, bad, Prompt{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := m.Lease(1, 39); !errors.Is(err, ErrBeyondReservation) {
		t.Errorf("beyond the response: %v", err)
	}
	if r := m.Regions(); r[0].Beams != 3 || r[0].ReservedTokens != 38 || r[0].ReservedSlabs != 8 {
		t.Errorf("%+v", r)
	}
}

func TestABeamSearchSharesItsPrompt(t *testing.T) {
	m, err := New(Config{Slabs: 20, Spec: NewSpec(4, Full{})})
	require.NoError(t, err)
	p := Prompt{Space: "a", Tokens: tokensFrom(100, 14)}
	search := Segments{Prompt: 14, Response: 6, Beams: 2}
	hit, err := m.ReserveSegments(1, search, p)
	require.NoError(t, err)
	require.Equal(t, Hit{}, hit)
	_, err = m.ReserveSegments(2, search, p)
	require.ErrorIs(t, err, ErrComputing)
	_, err = m.Lease(1, 18)
	require.NoError(t, err)
	require.NoError(t, m.Commit(1, p.Tokens, true))
	require.Equal(t, []Seq{2}, m.Ready())
	hit, err = m.ReserveSegments(2, search, p)
	require.NoError(t, err)
	require.Equal(t, 13, hit.Tokens, "three whole slabs, and all but the last token of the fourth")
	require.Equal(t, 1, hit.Copy.Tokens)
	require.Equal(t, m.Slabs(1)[:3], m.Slabs(2)[:3])
	require.NoError(t, m.Check())
	hit, err = m.ReservePrompt(3, Declared(20), Prompt{Space: "a", Tokens: tokensFrom(100, 17)})
	require.NoError(t, err)
	require.Equal(t, 14, hit.Tokens, "no answer of a beam is there")
	require.NoError(t, m.Check())
	_, err = m.ReserveSegments(4, search, Prompt{Tokens: tokensFrom(100, 13)})
	require.ErrorIs(t, err, ErrInvalid)
	for seq := Seq(1); seq <= 3; seq++ {
		_, err = m.Release(seq)
		require.NoError(t, err)
		require.NoError(t, m.Check())
	}
}
