package bodies_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/nats/bodies"
)

var (
	limits = bodies.Limits{Body: 100, Owner: 150, Total: 400, Idle: 30 * time.Second, Age: 2 * time.Minute}
	start  = time.Unix(1_000_000, 0)
)

func TestPartsMakeABodyThatIsTakenOnce(t *testing.T) {
	s := bodies.New(limits)
	require.NoError(t, s.Open(start, "a", "acme", 5))
	_, err := s.Take(start, "a", "acme")
	require.ErrorIs(t, err, bodies.ErrPart, "it is not whole")
	part := []byte("abc")
	require.NoError(t, s.Add(start, "a", "acme", 0, part))
	part[0] = 'x'
	require.NoError(t, s.Add(start, "a", "acme", 3, []byte("de")))
	got, err := s.Take(start, "a", "acme")
	require.NoError(t, err)
	require.Equal(t, "abcde", string(got))
	_, err = s.Take(start, "a", "acme")
	require.ErrorIs(t, err, bodies.ErrUnknown)
	n, size := s.Len()
	require.Zero(t, n+size)
}

func TestAnotherOwnersBodyIsNotThere(t *testing.T) {
	s := bodies.New(limits)
	require.NoError(t, s.Open(start, "a", "acme", 1))
	require.Equal(t, bodies.ErrUnknown, s.Add(start, "a", "other", 0, []byte("x")))
	require.NoError(t, s.Add(start, "a", "acme", 0, []byte("y")))
	_, err := s.Take(start, "a", "other")
	require.Equal(t, bodies.ErrUnknown, err)
	require.ErrorIs(t, s.Open(start, "a", "other", 1), bodies.ErrPart, "an id is not given twice")
	got, err := s.Take(start, "a", "acme")
	require.NoError(t, err)
	require.Equal(t, "y", string(got))
}

func TestAPartOutOfOrderDropsTheBody(t *testing.T) {
	for _, part := range []struct {
		offset int
		data   string
	}{{1, "x"}, {-1, "x"}, {0, ""}, {0, "abcdef"}, {1 << 40, "x"}} {
		s := bodies.New(limits)
		require.NoError(t, s.Open(start, "a", "acme", 5))
		require.ErrorIs(t, s.Add(start, "a", "acme", part.offset, []byte(part.data)), bodies.ErrPart)
		n, size := s.Len()
		require.Zero(t, n+size)
	}
}

func TestABodyFitsItsOwnersShareAndTheWhole(t *testing.T) {
	s := bodies.New(limits)
	for _, size := range []int{0, -1} {
		require.Error(t, s.Open(start, "a", "acme", size))
	}
	require.ErrorIs(t, s.Open(start, "a", "acme", 101), bodies.ErrTooLarge)
	require.NoError(t, s.Open(start, "a", "acme", 100))
	require.ErrorIs(t, s.Open(start, "b", "acme", 51), bodies.ErrFull)
	require.NoError(t, s.Open(start, "b", "acme", 50))
	require.NoError(t, s.Open(start, "c", "other", 100), "the others' share is theirs")
	require.NoError(t, s.Open(start, "d", "third", 100))
	require.NoError(t, s.Open(start, "e", "third", 50))
	require.ErrorIs(t, s.Open(start, "f", "fourth", 1), bodies.ErrFull)
	require.Equal(t, start.Add(limits.Idle), s.Expire(start))
	require.NoError(t, s.Open(start.Add(limits.Idle), "f", "fourth", 100), "nobody came for them")
}

func TestWhatComesSlowlyEndsToo(t *testing.T) {
	s := bodies.New(limits)
	require.NoError(t, s.Open(start, "a", "acme", 100))
	now := start
	for i := range 100 {
		now = now.Add(limits.Idle - 1)
		if err := s.Add(now, "a", "acme", i, []byte("x")); err != nil {
			require.ErrorIs(t, err, bodies.ErrUnknown)
			require.False(t, now.Before(start.Add(limits.Age)))
			require.Zero(t, s.Expire(now))
			return
		}
	}
	require.Fail(t, "it was kept")
}

// TestRandomOperationsNeverMixBodiesNorExceedTheLimits compares with a plain map.
func TestRandomOperationsNeverMixBodiesNorExceedTheLimits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s, now := bodies.New(limits), start
	sent := map[string][]byte{} // by id
	owner := map[string]string{}
	var ids []string
	for i := range 100_000 {
		now = now.Add(time.Duration(r.IntN(2000)) * time.Millisecond)
		who := fmt.Sprint("owner", r.IntN(4))
		switch op := r.IntN(10); {
		case op < 3 || len(ids) == 0:
			id := fmt.Sprint(i)
			if s.Open(now, id, who, r.IntN(110)) == nil {
				ids, owner[id] = append(ids, id), who
			}
		default:
			id := ids[len(ids)-1-r.IntN(min(len(ids), 8))]
			if op < 8 {
				part := bytes.Repeat([]byte{byte(i)}, r.IntN(60))
				if s.Add(now, id, who, len(sent[id]), part) == nil {
					require.Equal(t, owner[id], who)
					sent[id] = append(sent[id], part...)
				}
			} else if got, err := s.Take(now, id, who); err == nil {
				require.Equal(t, owner[id], who)
				require.Equal(t, sent[id], got)
			}
		}
		_, size := s.Len()
		require.LessOrEqual(t, size, limits.Total)
	}
	s.Expire(now.Add(limits.Age))
	n, size := s.Len()
	require.Zero(t, n+size)
}
