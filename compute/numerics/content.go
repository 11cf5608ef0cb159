package numerics

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"runtime"
	"sync"

	"github.com/millrace/millrace/compute/weights"
)

// pieceBytes is what one goroutine hashes at a time. The hash depends on it.
const pieceBytes = 4 << 20

// Content hashes tensors by name, type, shape and bytes, with every core, in hexadecimal. In
// which files they lie makes no difference. The tensors come in the order of the program.
func Content(tensors []weights.Tensor) string {
	sums := make([][][sha256.Size]byte, len(tensors))
	type piece struct {
		data []byte
		sum  *[sha256.Size]byte
	}
	pieces := make(chan piece)
	var hashing sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		hashing.Go(func() {
			for p := range pieces {
				*p.sum = sha256.Sum256(p.data)
			}
		})
	}
	for i, t := range tensors {
		sums[i] = make([][sha256.Size]byte, (len(t.Data)+pieceBytes-1)/pieceBytes)
		for j := range sums[i] {
			from := j * pieceBytes
			pieces <- piece{t.Data[from:min(from+pieceBytes, len(t.Data))], &sums[i][j]}
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
	return hex.EncodeToString(h.Sum(nil))
}
