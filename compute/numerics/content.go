package numerics

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/compute/weights"
)

// pieceBytes is what one goroutine hashes at a time. The hash depends on it.
const pieceBytes = 4 << 20

// Data is a checkpoint whose tensors need not all be in memory.
type Data interface {
	Use(names []string)          // puts their data into memory
	Forget(names []string) error // may take it away
}

// Content hashes tensors by name, type, shape and bytes, with every core, in hexadecimal. In
// which files they lie makes no difference. The tensors come in the order of the program. Only a few are in memory at a time.
func Content(tensors []weights.Tensor, data Data) (string, error) {
	sums := make([][][sha256.Size]byte, len(tensors))
	var failing sync.Mutex
	var failed error
	type piece struct {
		data []byte
		sum  *[sha256.Size]byte
		done func() // with it
	}
	pieces := make(chan piece)
	var hashing sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		hashing.Go(func() {
			for p := range pieces {
				*p.sum = sha256.Sum256(p.data)
				p.done()
			}
		})
	}
	for i, t := range tensors {
		sums[i] = make([][sha256.Size]byte, (len(t.Data)+pieceBytes-1)/pieceBytes)
		if len(sums[i]) == 0 {
			continue
		}
		names := []string{t.Name}
		data.Use(names)
		left := new(atomic.Int64)
		left.Store(int64(len(sums[i])))
		done := func() {
			if left.Add(-1) == 0 {
				err := data.Forget(names)
				failing.Lock()
				defer failing.Unlock()
				failed = errors.Join(failed, err)
			}
		}
		for j := range sums[i] {
			from := j * pieceBytes
			pieces <- piece{t.Data[from:min(from+pieceBytes, len(t.Data))], &sums[i][j], done}
		}
	}
	close(pieces)
	hashing.Wait()
	h := sha256.New()
	for i, t := range tensors {
		Field(h, "tensor", t.Name)
		Field(h, "type", fmt.Sprintf("%s %v %d", t.DType, t.Shape, len(t.Data)))
		if len(t.Order) > 0 {
			Field(h, "order", string(t.Order))
		}
		for j := range sums[i] {
			h.Write(sums[i][j][:])
		}
	}
	return hex.EncodeToString(h.Sum(nil)), failed
}
