package kvmgr

// Policy is the admission policy: how much of a sequence's declared length is
// promised when it is admitted.
type Policy interface {
	// Promise returns the tokens to reserve, 1 to declared, for a sequence that
	// declares declared tokens (prompt and longest answer).
	Promise(declared int) int
}

// Declared promises the whole declared length, so that no sequence can ever
// run out of slabs.
type Declared struct{}

// Promise returns declared.
func (Declared) Promise(declared int) int { return declared }
