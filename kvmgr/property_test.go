package kvmgr

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// model is the oracle: sequences with the slabs they hold, counted anew by
// brute force whenever a number is needed.
type model struct {
	slabs, slabTokens int
	seqs              map[Seq]*modelSeq
}

type modelSeq struct {
	tokens        int
	prompt, beams int // of a beam search
	held          []int32
}

// need counts a sequence's slabs token by token.
func (w *model) need(s *modelSeq, tokens int) int {
	n := 0
	for t := range tokens {
		switch {
		case t < s.prompt || s.beams == 0:
			if t%w.slabTokens == 0 {
				n++
			}
		case (t-s.prompt)%w.slabTokens == 0:
			n += s.beams
		}
	}
	return n
}

func (w *model) slabsFor(tokens int) int { return (tokens + w.slabTokens - 1) / w.slabTokens }

// room is what may be promised: slabs that nobody holds, less those promised.
func (w *model) room() int {
	held, promised := map[int32]bool{}, 0
	for _, s := range w.seqs {
		promised += w.need(s, s.tokens) - len(s.held)
		for _, id := range s.held {
			held[id] = true
		}
	}
	return w.slabs - len(held) - promised
}

// holders counts the sequences that hold each slab.
func (w *model) holders() map[int32]int {
	n := map[int32]int{}
	for _, s := range w.seqs {
		for _, id := range s.held {
			n[id]++
		}
	}
	return n
}

// op applies one random operation to both and compares them. The numbers come
// from next, so that the fuzzer can choose them.
func (w *model) op(t *testing.T, m *Manager, next func(n int) int) {
	t.Helper()
	seq := Seq(next(12))
	s := w.seqs[seq]
	switch next(8) {
	case 7:
		w.reserveSegments(t, m, seq, Segments{
			Prompt: 1 + next(w.slabs*w.slabTokens/3), Response: 1 + next(w.slabs*w.slabTokens/5), Beams: 1 + next(5),
		})
	case 0, 1:
		w.reserve(t, m, seq, 1+next(w.slabs*w.slabTokens*5/8))
	case 2, 3, 4:
		upTo := next(w.slabs * w.slabTokens)
		if s != nil && next(4) > 0 {
			upTo = next(s.tokens + 1)
		}
		w.lease(t, m, seq, upTo)
	case 5, 6:
		w.release(t, m, seq)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	if got := m.Stats(); got.Free != w.room() || got.Used != len(w.holders()) || got.Regions != len(w.seqs) {
		t.Fatalf("stats %+v, the model has room %d, used %d, regions %d", got, w.room(), len(w.holders()), len(w.seqs))
	}
}

func (w *model) reserve(t *testing.T, m *Manager, seq Seq, tokens int) {
	t.Helper()
	need, room := w.slabsFor(tokens), w.room()
	err := m.Reserve(seq, Declared(tokens))
	switch {
	case w.seqs[seq] != nil:
		wantErr(t, err, ErrSequenceExists)
	case need > w.slabs:
		wantErr(t, err, ErrNeverFits)
	case need > room:
		wantErr(t, err, ErrNoSlabs)
	default:
		wantErr(t, err, nil)
		w.seqs[seq] = &modelSeq{tokens: tokens}
	}
}

func (w *model) reserveSegments(t *testing.T, m *Manager, seq Seq, s Segments) {
	t.Helper()
	q := &modelSeq{tokens: s.Prompt + s.Response, prompt: s.Prompt, beams: s.Beams}
	need, room := w.need(q, q.tokens), w.room()
	if need != SegmentSlabs(s, w.slabTokens) {
		t.Fatalf("%+v: %d slabs, by equation (3) %d", s, need, SegmentSlabs(s, w.slabTokens))
	}
	err := m.ReserveSegments(seq, s)
	switch {
	case w.seqs[seq] != nil:
		wantErr(t, err, ErrSequenceExists)
	case need > w.slabs:
		wantErr(t, err, ErrNeverFits)
	case need > room:
		wantErr(t, err, ErrNoSlabs)
	default:
		wantErr(t, err, nil)
		w.seqs[seq] = q
	}
}

func (w *model) lease(t *testing.T, m *Manager, seq Seq, upTo int) {
	t.Helper()
	holders := w.holders()
	ids, err := m.Lease(seq, upTo)
	s := w.seqs[seq]
	switch {
	case s == nil:
		wantErr(t, err, ErrUnknownSequence)
	case upTo > s.tokens:
		wantErr(t, err, ErrBeyondReservation)
	default:
		wantErr(t, err, nil) // inside a reservation it never fails
		if want := max(0, w.need(s, upTo)-len(s.held)); len(ids) != want {
			t.Fatalf("lease of %d up to %d: %d new slabs, want %d", seq, upTo, len(ids), want)
		}
		for _, id := range ids {
			if holders[id] != 0 {
				t.Fatalf("lease of %d: slab %d is held already", seq, id)
			}
		}
		s.held = append(s.held, ids...)
	}
}

func (w *model) release(t *testing.T, m *Manager, seq Seq) {
	t.Helper()
	room := w.room()
	freed, err := m.Release(seq)
	if w.seqs[seq] == nil {
		wantErr(t, err, ErrUnknownSequence)
		return
	}
	wantErr(t, err, nil)
	delete(w.seqs, seq)
	if freed != w.room()-room {
		t.Fatalf("release of %d freed %d slabs, the room grew by %d", seq, freed, w.room()-room)
	}
}

func wantErr(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("got error %v, want %v", got, want)
	}
}

func TestRandomOperationsAgreeWithTheModel(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 7))
		slabs, slabTokens := 1+rng.IntN(150), 1+rng.IntN(17)
		m, err := New(Config{Slabs: slabs, SlabTokens: slabTokens})
		if err != nil {
			t.Fatal(err)
		}
		w := &model{slabs: slabs, slabTokens: slabTokens, seqs: map[Seq]*modelSeq{}}
		for range 600 {
			w.op(t, m, func(n int) int { return rng.IntN(max(n, 1)) })
		}
		for seq := range Seq(12) {
			w.release(t, m, seq)
		}
		if s := m.Stats(); s != (Stats{Slabs: slabs, Free: slabs}) {
			t.Fatalf("seed %d: not all came back: %+v", seed, s)
		}
	}
}

func FuzzManager(f *testing.F) {
	f.Add([]byte{3, 16})
	f.Add([]byte("\x40\x10reserve, lease, fork, release"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < 2 {
			return
		}
		slabs, slabTokens := 1+int(in[0])%130, 1+int(in[1])%20
		in = in[2:min(len(in), 1000)]
		m, err := New(Config{Slabs: slabs, SlabTokens: slabTokens})
		if err != nil {
			t.Fatal(err)
		}
		w := &model{slabs: slabs, slabTokens: slabTokens, seqs: map[Seq]*modelSeq{}}
		next := func(n int) int {
			if len(in) == 0 {
				return 0
			}
			v := int(in[0])
			in = in[1:]
			if n > 256 && len(in) > 0 {
				v = v<<8 | int(in[0])
				in = in[1:]
			}
			return v % max(n, 1)
		}
		for len(in) > 0 {
			w.op(t, m, next)
		}
	})
}

func TestFreeSetAgreesWithASlice(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 13))
	const n = 333
	f := newFreeSet(n)
	free := make([]bool, n)
	for i := range free {
		free[i] = true
	}
	var taken []int32
	for range 4000 {
		if len(taken) > 0 && rng.IntN(2) == 0 {
			i := rng.IntN(len(taken))
			f.put(int(taken[i]))
			free[taken[i]] = true
			taken = slices.Delete(taken, i, i+1)
			continue
		}
		from, k := rng.IntN(n), 1+rng.IntN(90)
		wantRun := 0
		for from+wantRun < n && wantRun < k && free[from+wantRun] {
			wantRun++
		}
		if got := f.run(from, k); got != wantRun {
			t.Fatalf("run(%d, %d) = %d, want %d", from, k, got, wantRun)
		}
		if got, want := f.next(from), slices.Index(free[from:], true); got != want && got != from+want {
			t.Fatalf("next(%d) = %d, want %d", from, got, from+want)
		}
		if k = min(k, f.count); k == 0 {
			continue
		}
		got := f.take(nil, k, from)
		if len(got) != k {
			t.Fatalf("took %d of %d", len(got), k)
		}
		if wantRun > 0 && got[0] != int32(from) {
			t.Fatalf("took %v, near %d", got, from)
		}
		for _, id := range got {
			if !free[id] {
				t.Fatalf("slab %d was not free", id)
			}
			free[id] = false
		}
		taken = append(taken, got...)
	}
}

func TestLeaseDoesNotAllocate(t *testing.T) {
	m := newManager(t, 5000)
	if err := m.Reserve(1, Declared(60000)); err != nil {
		t.Fatal(err)
	}
	upTo := 0
	if n := testing.AllocsPerRun(1000, func() {
		upTo += 33
		if _, err := m.Lease(1, upTo); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%g allocations per lease", n)
	}
}

// The worst case of the free set: every second slab is free.
func BenchmarkLeaseFragmented(b *testing.B) {
	const slabs = 100_000
	m, err := New(Config{Slabs: slabs, SlabTokens: 16})
	if err != nil {
		b.Fatal(err)
	}
	for seq := range Seq(slabs) {
		if err := m.Reserve(seq, Declared(16)); err != nil {
			b.Fatal(err)
		}
		if _, err := m.Lease(seq, 16); err != nil {
			b.Fatal(err)
		}
	}
	for seq := Seq(0); seq < slabs; seq += 2 {
		if _, err := m.Release(seq); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if err := m.Reserve(slabs, Declared(64*16)); err != nil {
			b.Fatal(err)
		}
		if _, err := m.Lease(slabs, 64*16); err != nil {
			b.Fatal(err)
		}
		if _, err := m.Release(slabs); err != nil {
			b.Fatal(err)
		}
	}
}
