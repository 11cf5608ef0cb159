package cluster

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkBeat is the cost of a beat among 1,000 nodes, and of the list that the next
// request uses.
func BenchmarkBeat(b *testing.B) {
	const nodes = 1000
	at := time.Unix(1000, 0)
	x := newTable("me", time.Second, at)
	beat := func(i int) {
		x.receive(at, Member{Node: fmt.Sprintf("n%08x", uint32(i)*2654435761), Worker: &Worker{Running: i}})
	}
	for i := range nodes {
		beat(i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		beat(i % nodes)
		if n := len(x.live()); n != nodes {
			b.Fatalf("found %d nodes, expected %d", n, nodes)
		}
	}
}
