// Package numerics makes a digest of everything that decides the bits of a model's logits. Two processes with
// equal digests compute equal bits for equal tokens, so that one may continue what the other
// began.
//
// The number of threads, the size of steps and the size of the KV cache are not part of a
// digest: a row's logits do not depend on them.
//
// It must not know the cluster or how the digest is compared.
package numerics

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"runtime"
)

// Version is the version of what computes outside of the kernels: the op programs that the
// architectures build, the decoding of quantized checkpoints, the sampler. A change of it
// that changes a bit raises it.
const Version = 2

// digestBytes is the length of a digest before it is spelled in hexadecimal.
const digestBytes = 16

// Ingredients are what the logits' bits depend on.
type Ingredients struct {
	Backend string // "cpu", "ref", "sycl", "cuda", "sim"
	Class   string // of the kernels that are loaded, with their version
	KV      string // type of keys and values that is in use: "bf16", "int8"
	Program string // Program of the loaded program, with the types of its weights
	Weights string // Content of the program's tensors, in hexadecimal
	Probe   string // Bits of the logits after Prompt

	Lossy string // as of model.Program. It is for clients to read: Program and KV have what the bits depend on
}

// Digest is 128 bits of SHA-256 in hexadecimal, followed by a hyphen and Lossy. The architecture of the machine
// is part of the hash: Go fuses products and sums on some.
func (i *Ingredients) Digest() string { return i.digest(Version, runtime.GOARCH) }

func (i *Ingredients) digest(version int, arch string) string {
	h := sha256.New()
	Field(h, "version", fmt.Sprint(version))
	Field(h, "arch", arch)
	Field(h, "backend", i.Backend)
	Field(h, "class", i.Class)
	Field(h, "kv", i.KV)
	Field(h, "program", i.Program)
	Field(h, "weights", i.Weights)
	Field(h, "probe", i.Probe)
	digest := hex.EncodeToString(h.Sum(nil)[:digestBytes])
	if i.Lossy != "" {
		digest += "-" + i.Lossy
	}
	return digest
}

// Field writes a name and a value to a hash so that no two lists of fields look alike.
func Field(h io.Writer, name, value string) {
	fmt.Fprintf(h, "%d:%s=%d:", len(name), name, len(value)) // a hash takes everything
	_, _ = io.WriteString(h, value)
}
