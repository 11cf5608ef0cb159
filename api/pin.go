package api

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strconv"
)

// Pin names what an answer is bound to once a token of it exists: it continues only where
// equal digests promise equal bits. An empty field binds nothing.
type Pin struct {
	Numerics string // digest of what computes the logits: weights, op program, types, kernels
	Text     string // digest of what makes ids and text: tokenizer files, chat template, EOS ids
	Prompt   string // SHA-256 of the prompt's token ids, in hexadecimal
}

// Fingerprint is the system_fingerprint of an answer: equal where equal requests get
// equal bits. It is "" without a numerics digest.
func (p Pin) Fingerprint() string {
	if p.Numerics == "" {
		return ""
	}
	return "fp_" + ShortDigest(p.Numerics)
}

// ShortDigest is a digest for people to read and compare: its first characters.
func ShortDigest(digest string) string {
	const most = 16
	return digest[:min(len(digest), most)]
}

// HashPrompt is the hash of a prompt's token ids, see Pin.
func HashPrompt(ids []int32) string {
	h := sha256.New()
	var b [4]byte
	for _, id := range ids {
		binary.LittleEndian.PutUint32(b[:], uint32(id))
		_, _ = h.Write(b[:]) // a hash never fails
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Key names the request among those of all tenants: an ID is its tenant's own.
func (r *Request) Key() string { return scoped(r.Tenant, r.ID) }

// OriginKey is Key with the Origin, which all attempts have in common.
func (r *Request) OriginKey() string { return scoped(r.Tenant, r.Origin()) }

// scoped is a different name for each pair: the length says where the tenant ends.
func scoped(tenant, id string) string {
	return strconv.Itoa(len(tenant)) + ":" + tenant + ":" + id
}
