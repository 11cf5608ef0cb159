package kvmgr

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func wantErr(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("got error %v, want %v", got, want)
	}
}

// TestAMillionOperationsAgreeWithTheModel: no slab is lost, free twice, or written by two sequences; what is admitted reaches its
// end; and a hit has the tokens and the space of its prompt. A failure names its seed and operation.
func TestAMillionOperationsAgreeWithTheModel(t *testing.T) {
	const seeds, operations = 1000, 1000
	happened := map[string]int{}
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(seed, 20))
		cfg := layout{Slabs: 2 + rng.IntN(30), SlabTokens: 1 + rng.IntN(5)}
		if seed%10 == 0 {
			cfg = layout{Slabs: 2 + rng.IntN(150), SlabTokens: 1 + rng.IntN(17)}
		}
		if seed%3 == 0 {
			cfg.Mappings = cfg.Slabs + rng.IntN(cfg.Slabs)
		}
		if seed%2 == 1 {
			cfg.Slots = 1 + rng.IntN(2*cfg.Slabs)
		}
		if seed%5 < 2 {
			cfg.Window = 2 + rng.IntN(4*cfg.SlabTokens)
			cfg.Live = LiveSlabs(cfg.Window, cfg.SlabTokens+rng.IntN(3*cfg.SlabTokens), cfg.SlabTokens)
		}
		if seed%7 < 3 {
			cfg = grouped(cfg, rng)
		} else if seed%3 == 0 {
			cfg = lossy(cfg, rng)
		} else if seed%3 == 1 {
			cfg = stateful(cfg, rng)
		}
		if seed%4 > 1 {
			cfg.Committed = 1 + rng.IntN(cfg.Slabs)
		}
		w := newWorld(t, fmt.Sprintf("seed %d, %+v", seed, cfg), cfg, rng.IntN)
		for i := range operations {
			w.op()
			switch {
			case i != operations/2:
			case seed%4 == 0:
				w.forget()
			default:
				w.finish()
			}
		}
		w.finish()
		w.drain()
		for what, n := range w.happened {
			happened[what] += n
		}
	}
	t.Logf("%d operations: %v", seeds*operations, happened)
	for _, what := range []string{"hit", "wait", "refused", "pause", "beams", "beams with prompts", "import", "export", "silence", "spill",
		"kept", "restore", "not restored",
		"trim", "slide", "slide after sinks", "lease after first slabs", "more tokens than the most slabs", "trim of a shared slab",
		"hit of a window", "crossed copy", "grown", "shrunk",
		"hit of a state", "wait for a state", "spill of a state", "hit of a state inside a slab", "state taken over", "snapshot",
		"no room for a snapshot", "snapshot whose slabs went to others", "state of an answer", "later state of an answer",
		"import of a state", "export of a state"} {
		if happened[what] == 0 {
			t.Errorf("no operation had a %s", what)
		}
	}
}

// grouped gives a manager some groups, and as many slabs for each as it had for all. A window is of some of them.
func grouped(cfg layout, rng *rand.Rand) layout {
	cfg.Groups.Full = 1 + rng.IntN(3)
	if cfg.Window > 0 {
		cfg.Groups.Windowed = 1 + rng.IntN(3)
	}
	cfg.Slabs = cfg.Slabs*cfg.Groups.Count() + rng.IntN(cfg.Groups.Count())
	cfg.Mappings, cfg.Slots = cfg.Mappings*cfg.Groups.Count(), cfg.Slots*cfg.Groups.Count()
	return cfg
}

// lossy gives the sequences of a manager with a window sinks, and of one without a window slabs before those of their tokens, or a bound.
func lossy(cfg layout, rng *rand.Rand) layout {
	if cfg.Slots = 0; cfg.Window > 0 {
		cfg.Sinks = 1 + rng.IntN(3)
		cfg.Live += cfg.Sinks
		return cfg
	}
	if rng.IntN(2) == 0 {
		cfg.Most = 1 + rng.IntN(5)
		return cfg
	}
	cfg.Head = 1 + rng.IntN(4)
	cfg.Slabs += 3 * cfg.Head
	return cfg
}

// stateful gives the sequences of a manager a state.
func stateful(cfg layout, rng *rand.Rand) layout {
	cfg.Window, cfg.Live = 0, 0
	cfg.Head, cfg.Every = 1+rng.IntN(4), cfg.SlabTokens*(1+rng.IntN(4))
	cfg.Slabs += (1 + rng.IntN(6)) * cfg.Head
	return cfg
}

func TestAHitIsTheLongestPrefixThatWasComputed(t *testing.T) {
	hits := 0
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		cfg := layout{Slabs: 4000, SlabTokens: 1 + int(seed%5)}
		if seed%2 == 1 {
			cfg.Window = 2 + rng.IntN(2*cfg.SlabTokens)
			cfg.Live = LiveSlabs(cfg.Window, cfg.SlabTokens, cfg.SlabTokens)
		}
		switch {
		case seed%4 > 1:
			cfg = grouped(cfg, rng)
		case seed%3 == 0:
			cfg = stateful(cfg, rng)
		}
		w := newWorld(t, fmt.Sprintf("seed %d", seed), cfg, rng.IntN)
		w.exact = true
		for range 800 {
			w.op()
		}
		hits += w.happened["hit"]
	}
	if hits == 0 {
		t.Fatal("nothing was shared")
	}
}

func FuzzManager(f *testing.F) {
	f.Add([]byte{3, 16})
	f.Add([]byte("\x40\x10reserve, lease, fork, release"))
	f.Add([]byte("\x41\x03reserve, lease, lend, retire"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < 2 {
			return
		}
		cfg := layout{Slabs: 2 + int(in[0])%130, SlabTokens: 1 + int(in[1])%20}
		if in[0] >= 128 {
			cfg.Window = 2 + int(in[1])%(3*cfg.SlabTokens)
			cfg.Live = LiveSlabs(cfg.Window, cfg.SlabTokens, cfg.SlabTokens)
			if in[0]%2 == 1 {
				cfg.Groups, cfg.Slabs = Counts{Full: 1, Windowed: 2}, 3*cfg.Slabs
			}
		}
		if in[0] < 128 && in[0]%4 == 1 {
			cfg.Head, cfg.Every = 1+int(in[1])%3, cfg.SlabTokens*(1+int(in[1])%4)
			cfg.Slabs += cfg.Head
		}
		if in[0]%4 == 3 {
			cfg.Committed = 1 + int(in[1])%cfg.Slabs
		}
		in = in[2:min(len(in), 4000)]
		w := newWorld(t, fmt.Sprintf("%+v", cfg), cfg, func(n int) int {
			if len(in) == 0 {
				return 0
			}
			v := int(in[0])
			in = in[1:]
			if n > 256 && len(in) > 0 {
				v = v<<8 | int(in[0])
				in = in[1:]
			}
			return v % n
		})
		for len(in) > 0 {
			w.op()
		}
		w.finish()
		w.drain()
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
	m, err := New(Config{Slabs: slabs, Spec: NewSpec(16, Full{})})
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
