package kvmgr

// Use is how a slab of the prefix tree was used. Its times count calls of ReservePrompt.
type Use struct {
	Tokens []int32 // of the slab; read only
	Last   int64   // the time of its last use
	Uses   uint32  // at least 1
	Stay   int64   // how long a slab that is used once stays at present; 0 before the first eviction
}

// Worth is the value of a slab that no sequence holds, when it becomes a leaf. The tree evicts the leaf with the smallest one.
type Worth func(Use) int64

// LRU is the Worth of plain LRU: the last use.
func LRU(u Use) int64 { return u.Last }

// ReusedLRU is the Worth of a server: a slab that was used again stays twice as long as one that was used once.
func ReusedLRU(u Use) int64 {
	if u.Uses > 1 {
		return u.Last + u.Stay
	}
	return u.Last
}
