package worker

import "github.com/millrace/millrace/actors/msg"

// imports reports whether the keys and values of a sequence may come from another worker, or those of a prefix from a dead one. Until
// they have, the inbox holds the sequence.
func (l *loop) imports(g *msg.Generate) bool {
	return g.Beams == nil && !g.Whole() && (g.Source != nil || l.Inherits != nil && l.Inherits())
}

// hold gives a message to the loop, after its sequence. The caller holds the lock.
func (b *inbox) hold(seq msg.SeqID, m any) {
	if list, ok := b.held[seq]; ok {
		b.held[seq] = append(list, m)
		return
	}
	b.add(m)
}

// imported gives a sequence to the loop, and the messages that came meanwhile.
func (b *inbox) imported(m *msg.Imported) {
	g := m.Generate
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.held[g.Seq]
	delete(b.held, g.Seq)
	if entry := b.loop.inFlight.get(g.Seq); entry != nil && g.Source != nil {
		entry.adopted = m.Adopted
		entry.spans.next(spanQueue)
	}
	b.add(g)
	for _, m := range list {
		b.add(m)
	}
}
