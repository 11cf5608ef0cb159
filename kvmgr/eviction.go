package kvmgr

// Use is how a slab of the prefix tree was used.
type Use struct {
	Tokens []int32 // of the slab; read only
	Last   uint64  // the call of ReservePrompt that used it last, counted from 1
	Uses   uint32  // at least 1
}

// Worth is the value of a slab that no sequence holds. The tree evicts the leaf with the smallest one. The value depends
// on the argument alone.
type Worth func(Use) int64

// keepPerUse is by how many calls of ReservePrompt each further use of a slab delays its eviction.
const keepPerUse = 200

// DelayedLRU is the Worth of a server: the last use, and each further use delays the eviction.
func DelayedLRU(u Use) int64 { return int64(u.Last) + keepPerUse*int64(u.Uses-1) }
