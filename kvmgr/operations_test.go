package kvmgr

import (
	"errors"
	"slices"
)

func spaceName(space int) string { return string(rune('a' + space)) }

// op does one operation on both, and compares them.
func (w *world) op() {
	w.step++
	seq := Seq(w.next(names))
	if w.cfg.Committed > 0 && w.next(8) == 0 {
		w.changeMemory()
		w.check()
		return
	}
	switch w.next(20) {
	case 0, 1, 2, 3:
		w.admit(seq)
	case 4:
		w.admitPlain(seq)
	case 5:
		w.startImport(seq)
	case 6:
		w.export(seq)
	case 7:
		if w.next(4) == 0 {
			w.settle(seq)
		} else {
			w.misuse(seq)
		}
	case 8, 9:
		w.cancel(seq)
	case 10, 11:
		w.spill(seq)
	case 12:
		w.restore(seq)
	case 13, 14:
		w.move(seq)
	default:
		w.extend(seq)
	}
	w.ready()
	w.check()
}

func (w *world) ready() {
	for _, seq := range w.m.Ready() {
		w.waiting[seq] = false
	}
}

// tokens returns n token ids. They often begin as those of a running sequence, of the same tenant or not.
func (w *world) tokens(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		if w.next(8) == 0 {
			ids[i] = 1
		}
	}
	if like := w.seqs[w.next(names)]; like != nil && w.next(2) == 0 {
		copy(ids, like.ids[:w.next(len(like.ids)+1)])
	} else if w.cfg.Every > 0 && w.next(2) == 0 {
		copy(ids, w.ended)
	}
	return ids
}

// fresh returns a sequence of random tokens that has nothing yet.
func (w *world) fresh() *tracked {
	most := max(w.cfg.Slabs*w.cfg.SlabTokens*9/8/w.g.Count(), 1)
	if w.cfg.Window > 0 {
		most *= 3
	}
	n := 1 + w.next(most)
	if w.exact || w.next(2) == 0 {
		n = 1 + w.next(6*w.cfg.SlabTokens)
	}
	q := &tracked{space: w.next(3), end: n, ids: w.tokens(n)}
	q.prompt = 1 + w.next((n+1)/2)
	if w.cfg.Every > 0 { // a longer one begins with a state more often
		q.prompt = 1 + w.next(n)
	}
	q.promise = q.prompt + w.next(n-q.prompt+1)
	q.hashes = hashes(q.space, q.ids)
	return q
}

// admission is the error that the model expects for a new sequence.
func (w *world) admission(seq Seq, q *tracked) error {
	full := w.most(q, q.end)
	if w.cfg.Mappings > 0 && full > w.cfg.Mappings {
		q.promise = q.end // it runs alone
	}
	switch {
	case w.seqs[seq] != nil:
		return ErrSequenceExists
	case full > w.cfg.Slabs:
		return ErrNeverFits
	case !w.allowed(seq, q):
		return ErrNoSlabs
	}
	return nil
}

// prefix makes a sequence begin with the longest computed prefix of its prompt, less its last token, and without the slabs of windowed
// groups before position from. It returns the number of positions of the prefix that are full.
func (w *world) prefix(q *tracked, from int) (path int) {
	f := w.m.match(spaceName(q.space), q.ids[:q.prompt-1], q.imported, q.beams > 0, hasSlab)
	q.slabs = nil
	for i := range f.whole {
		for _, g := range f.groups {
			q.slabs = append(q.slabs, g.path[i].slab)
		}
	}
	first := from
	if q.beams == 0 {
		first = max(first, min(w.seen(f.whole*w.cfg.SlabTokens+f.partial), f.whole))
	}
	w.begins(q, first)
	return f.whole
}

// waits notes that a sequence waits for tokens that another one computes, and checks that it pays.
func (w *world) waits(seq Seq, q *tracked) {
	soon := 0
	for _, o := range w.seqs {
		if o != nil && o.space == q.space && !o.settled {
			soon = max(soon, commonPrefix(o.ids, q.ids[:q.prompt-1]))
		}
	}
	if soon < w.cfg.SlabTokens && soon < q.prompt-1 {
		w.fail("sequence %d waits, others compute %d tokens of it at most", seq, soon)
	}
	w.waiting[seq] = true
	if w.happened["wait"]++; w.cfg.Every > 0 {
		w.happened["wait for a state"]++
	}
}

// admit begins a sequence with a prompt, which may share slabs: a new prompt, the next turn of another sequence, or a fork of it.
func (w *world) admit(seq Seq) {
	q := w.fresh()
	q.offers = true
	if w.cfg.Every == 0 && q.prompt < q.end && w.next(8) == 0 {
		q.beams, q.promise = 1+w.next(4), q.end
	}
	n := w.prefix(q, 0)
	promise := q.promise
	want := w.admission(seq, q)
	held := w.bank().refs
	p := Prompt{Space: spaceName(q.space), Tokens: q.ids[:q.prompt]}
	var h Hit
	var err error
	if q.beams > 0 {
		h, err = w.m.ReserveSegments(seq, Segments{Prompt: q.prompt, Response: q.end - q.prompt, Beams: q.beams}, p)
	} else {
		h, err = w.m.ReservePrompt(seq, Length{End: q.end, Promise: promise}, p)
	}
	if errors.Is(err, ErrComputing) && w.seqs[seq] == nil {
		w.waits(seq, q)
		return
	}
	w.want("admit", err, want)
	if err != nil {
		w.happened["refused"]++
		return
	}
	path := w.live(q)
	q.slabs = slices.Clone(w.m.Slabs(seq))
	head := 0
	if h.Tokens > 0 {
		head = w.cfg.Head
	}
	if w.positions(q) != head+h.Slabs || n > h.Slabs || !slices.Equal(w.has(q, head, head+n), path) || h.Tokens >= q.prompt {
		w.fail("sequence %d of a prompt of %d has %+v in slabs %v, the prefix was in %v", seq, q.prompt, h, q.slabs, path)
	}
	if q.first > 0 {
		w.happened["hit of a window"]++
	}
	for _, id := range append(w.has(q, 0, head), w.has(q, head+n, w.positions(q))...) {
		if held[id] != 0 {
			w.fail("sequence %d leases slab %d, which %d sequences hold", seq, id, held[id])
		}
	}
	for i, to := range h.Copy.To {
		if slices.Contains(h.Copy.From, to) {
			w.fail("%+v overwrites what it reads", h.Copy)
		}
		copy(w.contents[to][:h.Copy.Tokens], w.contents[h.Copy.From[i]])
	}
	if head > 0 {
		w.happened["hit of a state"]++
		if len(h.Copy.From) < head {
			w.happened["state taken over"]++
		}
		if h.Tokens > n*w.cfg.SlabTokens {
			w.happened["hit of a state inside a slab"]++
		}
	}
	if h.Tokens <= n*w.cfg.SlabTokens && h.Slabs > n {
		w.happened["crossed copy"]++
	}
	if w.exact && h.Tokens != w.longest(q) {
		w.fail("a hit of %d tokens of %v, want %d", h.Tokens, q.ids[:q.prompt], w.longest(q))
	}
	if q.beams > 0 {
		w.happened["beams with prompts"]++
	}
	q.done = h.Tokens
	w.seqs[seq] = q
	w.happened["hit"] += h.Tokens
	w.verify(seq, q)
}

// longest is the longest prefix of a prompt, less its last token, that was committed.
func (w *world) longest(q *tracked) (n int) {
	for _, o := range w.offered {
		if o.space == q.space && (w.cfg.Every == 0 || commonPrefix(o.ids, q.ids[:q.prompt-1]) == len(o.ids)) {
			n = max(n, commonPrefix(o.ids, q.ids[:q.prompt-1]))
		}
	}
	if w.cfg.Sinks > 0 {
		n = min(n, w.cfg.Window-1)
	}
	return n
}

// admitPlain begins a sequence that shares nothing, or a beam search.
func (w *world) admitPlain(seq Seq) {
	q := w.fresh()
	if w.cfg.Every > 0 || w.next(2) == 0 || q.prompt == q.end {
		promise := q.promise
		w.begins(q, 0)
		want := w.admission(seq, q)
		w.want("reserve", w.m.Reserve(seq, Length{End: q.end, Promise: promise}), want)
		if want == nil {
			w.seqs[seq] = q
		}
		return
	}
	q.beams, q.promise = 1+w.next(4), q.end
	want := w.admission(seq, q)
	_, err := w.m.ReserveSegments(seq, Segments{Prompt: q.prompt, Response: q.end - q.prompt, Beams: q.beams}, Prompt{})
	w.want("reserve beams", err, want)
	if want == nil {
		w.seqs[seq] = q
		w.happened["beams"]++
	}
}

// startImport begins the hand-over of a prompt that was computed elsewhere.
func (w *world) startImport(seq Seq) {
	// It has its last window only, or its slabs are not copied.
	if w.exact && w.cfg.Window > 0 || w.cfg.Sinks > 0 || w.cfg.Every == 0 && w.cfg.Head+w.cfg.Most > 0 {
		return
	}
	q := w.fresh()
	state := w.cfg.Every > 0 && w.next(2) == 0
	q.imported, q.stateless, q.offers = true, !state, true
	from := w.firstKept(q.prompt - 1)
	n := w.prefix(q, from)
	promise := q.promise
	want := w.admission(seq, q)
	held := w.bank().refs
	atOnce := state && q.prompt%2 == 0
	slabs, computed, err := w.m.Import(seq, Length{End: q.end, Promise: promise},
		Prompt{Space: spaceName(q.space), Tokens: q.ids[:q.prompt], AtOnce: atOnce}, state)
	if errors.Is(err, ErrComputing) && w.seqs[seq] == nil && !atOnce {
		w.waits(seq, q)
		return
	}
	w.want("import", err, want)
	if err != nil {
		return
	}
	path, head := w.has(q, 0, n), w.cfg.Head
	q.slabs = slices.Clone(w.m.Slabs(seq))
	w.seqs[seq] = q
	if slabs == nil { // all of it is here
		w.cancel(seq)
		return
	}
	here := n
	if w.g.Full == 0 {
		here = max(n, from)
	}
	lead, wanted := head+here*w.g.Count(), slices.Clone(q.slabs)
	if w.cfg.Every > 0 { // those that are here are not needed
		for i := range lead {
			if !state || i >= head {
				wanted[i] = -1
			}
		}
	}
	if state {
		lead = 0
	}
	if len(slabs) < w.slabsFor(q, q.prompt-1)*w.g.Count() || computed != lead || !slices.Equal(slabs, wanted) ||
		!slices.Equal(w.has(q, head, head+here), path) {
		w.fail("import of %d has %d slabs computed of %v, the prefix was in %v", seq, computed, slabs, path)
	}
	for _, id := range append(w.has(q, 0, head), w.has(q, head+here, w.positions(q))...) {
		if held[id] != 0 {
			w.fail("import of %d leases slab %d, which %d sequences hold", seq, id, held[id])
		}
	}
	for place, id := range slabs {
		if needed := w.m.Copied(q.prompt, place, state); place >= head+here*w.g.Count() && needed != (id >= 0) {
			w.fail("import of %d has slab %d at place %d, needed: %t", seq, id, place, needed)
		}
	}
	q.done = here * w.cfg.SlabTokens
	if w.setState(q); state {
		w.happened["import of a state"]++
	}
	w.verify(seq, q)
	w.happened["import"]++
}

// export finds what is computed of some tokens, as a hand-over does.
func (w *world) export(seq Seq) {
	q := w.seqs[seq]
	if q == nil {
		q = w.fresh()
	}
	state := w.cfg.Every > 0 && w.next(2) == 0
	slabs, tokens := w.m.Find(Prompt{Space: spaceName(q.space), Tokens: q.ids}, state)
	part := &tracked{done: tokens, slabs: slabs, hashes: q.hashes, stateless: !state}
	for place, id := range slabs {
		if id < 0 && place%w.g.Count() >= w.g.Full {
			part.first = place/w.g.Count() + 1
		}
	}
	w.verify(seq, part)
	slabs = w.live(part)
	for o := range Seq(names) {
		if both := common(slabs, w.writeSet(o)); len(both) > 0 {
			w.fail("slabs %v are exported while sequence %d writes them", both, o)
		}
	}
	if w.happened["export"] += tokens; state && tokens > 0 {
		w.happened["export of a state"]++
	}
}

// extend computes some tokens of a sequence, and offers them. It returns false if the sequence may not grow: it pauses.
func (w *world) extend(seq Seq) bool {
	q := w.seqs[seq]
	if q == nil || q.at != inPool {
		return q == nil
	}
	upTo := min(q.done+1+w.next(3*w.cfg.SlabTokens), q.limit())
	if upTo > q.promise && !w.grow(seq, q, upTo) {
		if q.done >= q.promise {
			return false
		}
		upTo = q.promise
	}
	more := upTo > q.done
	if upTo = w.room(seq, q, upTo); more && upTo <= q.done {
		w.fail("sequence %d of %d computed tokens has no room for another one", seq, q.done)
	}
	want := max(0, w.slabsFor(q, upTo)-w.positions(q)) * w.g.Count()
	ids, err := w.m.Lease(seq, upTo)
	w.want("lease", err, nil) // within a promise it never fails
	if len(ids) != want {
		w.fail("lease of %d up to %d: %d new slabs, want %d", seq, upTo, len(ids), want)
	}
	w.unheld(seq, ids)
	if q.slabs = append(q.slabs, ids...); w.cfg.Head > 0 {
		w.happened["lease after first slabs"] += len(ids)
	}
	w.write(seq, q, upTo)
	if w.cfg.Most > 0 && upTo > w.cfg.Most*w.cfg.SlabTokens {
		w.happened["more tokens than the most slabs"]++
	}
	w.verify(seq, q)
	if w.cfg.Every > 0 && !q.stateless && w.next(2) == 0 {
		w.lend(seq, q)
	}
	if !q.settled && w.next(4) > 0 {
		w.commit(seq, q)
	}
	return true
}

// lend copies the state of a sequence to slabs of the tree.
func (w *world) lend(seq Seq, q *tracked) {
	slabs := w.m.Lend(seq, q.done)
	switch {
	case slabs == nil && q.offers && q.done > 0 && q.done%w.cfg.SlabTokens == 0:
		w.happened["no room for a snapshot"]++
	case slabs != nil && w.next(8) > 0: // else the copy would be late
		w.unheld(seq, slabs)
		for i, id := range slabs {
			copy(w.contents[id], w.contents[q.slabs[i]])
		}
		q.lent = q.done
	case slabs != nil && (q.lent == q.done || w.next(2) == 0): // else the slabs have an earlier state
		q.lent = 0
	}
}

// room makes a sequence give back slabs that its next token does not see, and returns how many of some tokens it may lease slabs for.
func (w *world) room(seq Seq, q *tracked, upTo int) int {
	limit := func() int {
		if !q.slides {
			return q.promise
		}
		return min(q.promise, (w.gone(q)+w.liveOf(q, q.promise))*w.cfg.SlabTokens)
	}
	full := upTo > limit()
	if full && !q.imported {
		_, err := w.m.Lease(seq, upTo)
		w.want("lease", err, ErrBeyondReservation)
	}
	if w.cfg.Window > 0 && (full || w.next(3) == 0) {
		w.trim(seq, q, full)
	}
	if got := w.m.Limit(seq); got != limit() {
		w.fail("sequence %d may lease up to token %d, the model says %d", seq, got, limit())
	}
	return min(upTo, limit())
}

// trim gives slabs of a sequence back: those that it does not need, with all, or fewer.
func (w *world) trim(seq Seq, q *tracked, all bool) {
	if w.exact && q.at == inPool && !q.settled {
		w.commit(seq, q)
	}
	tokens := w.firstKept(q.done) * w.cfg.SlabTokens
	if !all {
		tokens = w.next(tokens + 1)
	}
	before := w.bank()
	w.want("trim", w.m.Trim(seq, tokens), nil)
	if to := min(tokens/w.cfg.SlabTokens, w.positions(q)); q.beams == 0 && to > q.first {
		for i := q.first; i < to; i++ {
			for group := w.g.Full; group < w.g.Count(); group++ {
				if before.refs[w.slabAt(q, i, group)] > 1 {
					w.happened["trim of a shared slab"]++
				}
			}
		}
		if q.first = to; q.slides {
			w.happened["slide"]++
		}
		if w.cfg.Sinks > 0 && w.gone(q) > 0 {
			w.happened["slide after sinks"]++
		}
		w.happened["trim"]++
	}
	if after := w.bank(); after.available < before.available {
		w.fail("sequence %d gave slabs back, and %d are available, %d before", seq, after.available, before.available)
	}
}

// grow promises more to a sequence, if all others can still reach their ends.
func (w *world) grow(seq Seq, q *tracked, tokens int) bool {
	grown := *q
	grown.promise = tokens
	ok := w.allowed(seq, &grown)
	err := w.m.Grow(seq, tokens)
	if q.denied = !ok; ok {
		w.want("grow", err, nil)
		q.promise = tokens
		return true
	}
	w.want("grow", err, ErrNoSlabs)
	w.happened["pause"]++
	return false
}

// write computes the tokens up to one.
func (w *world) write(seq Seq, q *tracked, upTo int) {
	w.verifyState(seq, q)
	for ; q.done < upTo; q.done++ {
		if q.beams > 0 && q.done >= q.prompt {
			continue
		}
		if q.first > w.seen(q.done) && q.beams == 0 && !q.imported {
			w.fail("token %d of sequence %d sees slabs from %d on, which has those from %d on", q.done, seq, w.seen(q.done), q.first)
		}
		for group := range w.g.Count() {
			if q.done/w.cfg.SlabTokens < w.firstOf(q, group) { // of an import
				continue
			}
			slab, at := w.slabAt(q, w.position(q, q.done), group), q.done%w.cfg.SlabTokens
			if n := w.m.bySlab[slab]; n != nil && at < len(n.tokens) {
				w.fail("sequence %d writes token %d to slab %d, which offers it", seq, q.done, slab)
			}
			w.contents[slab][at] = content(q.hashes[q.done], group)
		}
	}
	w.setState(q)
}

func (w *world) commit(seq Seq, q *tracked) {
	tail, ids := w.next(2) == 0, q.ids[:q.computed()]
	w.want("commit", w.m.Commit(seq, ids, tail), nil)
	if q.lent > 0 {
		w.snapshot(seq, q)
	}
	if q.offers && !w.m.regions[seq].cached {
		w.happened["silence"]++ // it would be unsafe to hold the slabs of another sequence too
	}
	if !w.exact || !q.offers || w.cfg.Every > 0 {
		return
	}
	if !tail {
		ids = ids[:len(ids)/w.cfg.SlabTokens*w.cfg.SlabTokens]
	}
	w.offered = append(w.offered, &offering{q.space, slices.Clone(ids)})
}

// snapshot says that the copy of a sequence's state is there.
func (w *world) snapshot(seq Seq, q *tracked) {
	v, late := w.m.regions[seq].lent, w.m.regions[seq].late
	reclaimed := v == nil || v.tokens != q.lent
	w.want("snapshot", w.m.Snapshot(seq, q.lent), nil)
	w.outlived(seq, q, late)
	switch {
	case reclaimed:
		w.happened["snapshot whose slabs went to others"]++
	case q.done/w.cfg.SlabTokens == q.lent/w.cfg.SlabTokens:
		w.happened["snapshot"]++
		if w.exact {
			w.offered = append(w.offered, &offering{q.space, slices.Clone(q.ids[:q.lent])})
		}
	}
	q.lent = 0
}

// retire gives the tree the state of a sequence that ends.
func (w *world) retire(seq Seq, q *tracked) {
	late := w.m.regions[seq].late
	w.want("retire", w.m.Retire(seq, q.ids[:q.done]), nil)
	w.outlived(seq, q, late)
	if q.offers && w.cfg.Every > 0 && q.done > 0 {
		w.happened["state of an answer"]++
		if w.exact {
			w.offered = append(w.offered, &offering{q.space, slices.Clone(q.ids[:q.done])})
		}
	}
}

// outlived notes that a sequence gave back the last snapshot of its answer, if it did: it has a later one.
func (w *world) outlived(seq Seq, q *tracked, before *snapshot) {
	if before == nil || w.m.regions[seq].late == before {
		return
	}
	w.happened["later state of an answer"]++
	w.offered = slices.DeleteFunc(w.offered, func(o *offering) bool {
		return o.space == q.space &&
			slices.Equal(o.ids, q.ids[:before.tokens])
	})
}

// settle says that a sequence offers no more tokens. Those that wait for them compute them.
func (w *world) settle(seq Seq) {
	w.m.Settle(seq)
	if q := w.seqs[seq]; q != nil && q.at == inPool {
		q.settled = true
	}
}

// spill pauses a sequence and makes room of its slabs. It returns false if it may not, or has nothing to spill.
func (w *world) spill(seq Seq) bool {
	q := w.seqs[seq]
	if q == nil || q.imported || q.at != inPool || q.done == 0 {
		return false
	}
	if q.beams > 0 {
		_, err := w.m.Spill(seq, q.done)
		w.want("spill of beams", err, ErrInvalid)
		return false
	}
	kept := max(q.first, w.firstKept(q.done))
	n := w.g.Slabs(w.slabsFor(q, q.done), kept)
	gone := *q
	gone.at, gone.kept, gone.slots, gone.denied = leaving, kept, make([]int32, n), false
	ok := w.bank().unused-w.returning() >= n && w.allowed(seq, &gone)
	moves, err := w.m.Spill(seq, q.done)
	if !ok {
		w.want("spill", err, ErrNoSlabs)
		w.happened["kept"]++
		return false
	}
	w.want("spill", err, nil)
	copied := *q
	copied.first = kept
	for i, mv := range moves {
		if mv.Slab != w.has(&copied, 0, w.slabsFor(q, q.done))[i] {
			w.fail("spill of %d copies %v, its slabs are %v", seq, moves, q.slabs)
		}
		gone.slots[i] = mv.Slot
	}
	gone.moves = moves
	w.noSlots(seq, gone.slots)
	*q = gone
	if w.happened["spill"]++; w.cfg.Every > 0 {
		w.happened["spill of a state"]++
	}
	return true
}

// returning counts the slots that are not free yet.
func (w *world) returning() (n int) {
	for _, q := range w.seqs {
		if q != nil && q.at == returning {
			n += len(q.slots)
		}
	}
	return n
}

// noSlots fails if another sequence has one of some slots.
func (w *world) noSlots(seq Seq, slots []int32) {
	for o, q := range w.seqs {
		if q != nil && Seq(o) != seq && len(common(slots, q.slots)) > 0 {
			w.fail("sequences %d and %d have slots %v", seq, o, common(slots, q.slots))
		}
	}
}

// restore brings a sequence back, with a promise of its own. It returns false if it may not.
func (w *world) restore(seq Seq) bool {
	q := w.seqs[seq]
	if q == nil || q.at != inTier {
		if q != nil && q.at != returning {
			_, err := w.m.Restore(seq, Declared(q.end))
			w.want("restore", err, map[bool]error{true: ErrSequenceExists, false: ErrUnknownSequence}[q.at == leaving])
		}
		return false
	}
	back := *q
	back.promise = min(q.end, q.done+w.next(4*w.cfg.SlabTokens))
	promise := back.promise
	back.at = returning
	w.begins(&back, q.kept)
	full := w.most(&back, q.end)
	if w.cfg.Mappings > 0 && full > w.cfg.Mappings {
		back.promise = q.end
	}
	ok := w.allowed(seq, &back)
	held := w.bank().refs
	moves, err := w.m.Restore(seq, Length{End: q.end, Promise: promise})
	if !ok {
		w.want("restore", err, ErrNoSlabs)
		w.happened["not restored"]++
		return false
	}
	w.want("restore", err, nil)
	back.moves = moves
	back.slabs = slices.Clone(w.m.Slabs(seq))
	for i, mv := range moves {
		if mv.Slot != q.slots[i] || mv.Slab != w.live(&back)[i] || held[mv.Slab] != 0 {
			w.fail("restore of %d copies %v to slabs %v, its slots are %v", seq, moves, back.slabs, q.slots)
		}
	}
	*q = back
	w.happened["restore"]++
	return true
}

// move makes a copy, in any order. The sequence has left, or is back, with the last one. It returns false if there is none to make.
func (w *world) move(seq Seq) bool {
	q := w.seqs[seq]
	if q == nil || len(q.moves) == 0 {
		return false
	}
	i := w.next(len(q.moves))
	mv := q.moves[i]
	q.moves = slices.Delete(slices.Clone(q.moves), i, i+1)
	if q.at == leaving {
		copy(w.tier[mv.Slot], w.contents[mv.Slab])
	} else {
		copy(w.contents[mv.Slab], w.tier[mv.Slot])
	}
	switch {
	case len(q.moves) > 0:
	case q.at == leaving:
		w.verify(seq, q)
		w.want("spilled", w.m.Spilled(seq), nil)
		q.at, q.slabs, q.first, q.slides = inTier, nil, 0, false
	default:
		tokens, err := w.m.Restored(seq)
		w.want("restored", err, nil)
		if tokens != q.done {
			w.fail("sequence %d is back with %d tokens, had %d", seq, tokens, q.done)
		}
		q.at, q.slots, q.settled = inPool, nil, false
		w.verify(seq, q)
	}
	return true
}

func (w *world) cancel(seq Seq) {
	q := w.seqs[seq]
	if q == nil {
		return
	}
	if q.at == inPool {
		w.verify(seq, q)
	}
	before := w.bank().available
	if q.at == inPool && w.cfg.Every > 0 && !q.stateless && w.next(2) == 0 {
		w.retire(seq, q)
		w.ended = q.ids[:q.done]
	}
	freed, err := w.m.Release(seq)
	w.want("release", err, nil)
	w.seqs[seq] = nil
	if after := w.bank().available; freed != after-before {
		w.fail("release of %d freed %d slabs, the room grew from %d to %d", seq, freed, before, after)
	}
}

// misuse does what a caller must not do. Nothing may change.
func (w *world) misuse(seq Seq) {
	q := w.seqs[seq]
	if q != nil && q.at != inPool {
		_, err := w.m.Spill(seq, 1)
		w.want("spill", err, map[bool]error{true: ErrUnknownSequence, false: ErrInvalid}[q.at == inTier])
		w.want("reserve", w.m.Reserve(seq, Declared(1)), ErrSequenceExists)
		return
	}
	if q == nil {
		_, err := w.m.Spill(seq, 1)
		w.want("spill", err, ErrUnknownSequence)
		_, err = w.m.Restore(seq, Declared(1))
		w.want("restore", err, ErrUnknownSequence)
		_, err = w.m.Lease(seq, 1)
		w.want("lease", err, ErrUnknownSequence)
		_, err = w.m.Release(seq)
		w.want("release", err, ErrUnknownSequence)
		w.want("grow", w.m.Grow(seq, 1), ErrUnknownSequence)
		w.want("commit", w.m.Commit(seq, []int32{1}, false), ErrUnknownSequence)
		w.want("reserve", w.m.Reserve(seq, Length{End: 1, Promise: 2}), ErrInvalid)
		return
	}
	_, err := w.m.Lease(seq, q.promise+1)
	w.want("lease", err, ErrBeyondReservation)
	w.want("grow", w.m.Grow(seq, q.end+1), ErrBeyondReservation)
	w.want("grow", w.m.Grow(seq, q.promise), nil)
	w.want("reserve", w.m.Reserve(seq, Declared(1)), ErrSequenceExists)
	bounded := q.beams == 0 && w.cfg.Most > 0 && w.positions(q) == w.cfg.Most // any token has a slab then
	if leased := max(w.positions(q)-w.cfg.Head, 0) * w.cfg.SlabTokens; !bounded && leased < len(q.ids) {
		w.want("commit", w.m.Commit(seq, q.ids[:leased+1], false), ErrBeyondReservation)
	}
}

// finish runs all sequences to their declared ends, in any order.
func (w *world) finish() {
	// try does something to each sequence in turn, and says whether something was done.
	try := func(do func(Seq) bool, once bool) (done bool) {
		first := w.next(names)
		for i := range names {
			seq := Seq((first + i) % names)
			if w.seqs[seq] != nil && (!once || !done) {
				done = do(seq) || done
				w.ready()
				w.check()
			}
		}
		return done
	}
	run := func(seq Seq) bool {
		switch q := w.seqs[seq]; {
		case q.at == leaving || q.at == returning:
			return w.move(seq)
		case q.done >= q.limit() && q.at == inPool:
			w.cancel(seq)
			return true
		}
		return w.extend(seq)
	}
	for w.seqs != [names]*tracked{} {
		if !try(run, false) && !try(w.restore, true) && !try(w.spill, true) {
			w.fail("nobody may grow, leave or return: %+v", w.bank())
		}
	}
	if i := slices.Index(w.waiting[:], true); i >= 0 {
		w.fail("sequence %d waits for ever", i)
	}
}

// forget ends all sequences and loses the contents of the memory, as a device that fails.
func (w *world) forget() {
	for seq := range Seq(names) {
		w.cancel(seq)
	}
	w.ready()
	w.m.Forget()
	for _, slab := range w.contents {
		clear(slab)
	}
	w.offered = nil
	w.check()
}

// drain checks that every slab of the pool can be leased.
func (w *world) drain() {
	w.m.Grown(w.m.Uncommitted(w.cfg.Slabs))
	positions := w.cfg.Slabs / w.g.Count()
	all := (positions - w.cfg.Head) * w.cfg.SlabTokens
	if w.cfg.Window == 0 && w.cfg.Most == 0 {
		w.want("reserve all", w.m.Reserve(0, Declared(all)), nil)
	} else { // beams keep all slabs
		_, err := w.m.ReserveSegments(0, Segments{Prompt: w.cfg.SlabTokens, Response: all - w.cfg.SlabTokens, Beams: 1}, Prompt{})
		w.want("reserve all", err, nil)
	}
	ids, err := w.m.Lease(0, all)
	w.want("lease all", err, nil)
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	if len(ids) != positions*w.g.Count() {
		w.fail("%d slabs of %d are left", len(ids), w.cfg.Slabs)
	}
	_, err = w.m.Release(0)
	w.want("release all", err, nil)
}
