package api

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strconv"
	"strings"
)

// Pin identifies the workers that can continue an answer after its first token: those with the
// same digests, which promise equal bits. An empty field matches every worker.
type Pin struct {
	Numerics string // digest of weights, op program, types and kernels, which determine the logits
	Text     string // digest of tokenizer files, chat template and EOS ids, which determine ids and text
	Prompt   string // SHA-256 of the prompt's token ids, in hexadecimal
}

// Fingerprint returns the system_fingerprint of an answer. Systems with the same fingerprint give
// equal requests equal bits. What KV returns follows it after a hyphen. It is "" without a numerics digest.
func (p Pin) Fingerprint() string {
	if p.Numerics == "" {
		return ""
	}
	digest, kv, lossy := strings.Cut(p.Numerics, "-")
	if digest = "fp_" + ShortDigest(digest); lossy {
		digest += "-" + kv
	}
	return digest
}

// KV names what the workers lose of the keys and values of long sequences, such as streaming-4-1020; "": nothing. Their digest ends in it.
func (p Pin) KV() string {
	_, kv, _ := strings.Cut(p.Numerics, "-")
	return kv
}

// ShortDigest returns the first 16 characters of a digest, for people to read and compare.
func ShortDigest(digest string) string {
	const length = 16
	return digest[:min(len(digest), length)]
}

// HashPrompt returns the hash of token ids, such as those of Pin.Prompt.
func HashPrompt(ids []int32) string {
	h := sha256.New()
	var b [4]byte
	for _, id := range ids {
		binary.LittleEndian.PutUint32(b[:], uint32(id))
		_, _ = h.Write(b[:]) // a hash never fails
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Key returns a name of the request that is unique among all tenants. An ID is unique within a tenant.
func (r *Request) Key() string { return scoped(r.Tenant, r.ID) }

// OriginKey returns a name that all attempts of a request share, and no other request has: a later one may have the same ID.
func (r *Request) OriginKey() string {
	return scoped(r.Tenant, r.Origin()) + "@" + strconv.FormatInt(r.Arrival.UnixNano(), 36)
}

// scoped returns a different name for each pair. The length marks the end of the tenant.
func scoped(tenant, id string) string {
	return strconv.Itoa(len(tenant)) + ":" + tenant + ":" + id
}
