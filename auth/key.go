// Package auth identifies callers by API keys, from a file of hashes that is read again when it
// changes, and holds each key to its limits.
//
// It must not know HTTP, NATS or actors.
package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"strings"
)

// A key is "mr-" ID "-" SECRET: the id finds the key's entry and may be logged,
// the secret has 256 random bits. With 256 bits, one round of SHA-256 is enough for
// a stored hash: slow hashes (argon2id) make up for passwords that can be
// guessed, and would cost every request milliseconds.
const (
	prefix      = "mr-"
	idLength    = 12 // hexadecimal digits
	secretBytes = 32
)

var secretText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewKey makes a key for a tenant: its text, to be shown once, and the entry for
// the file.
func NewKey(tenant string) (text string, e Entry) {
	id, secret := make([]byte, idLength/2), make([]byte, secretBytes)
	rand.Read(id)     //nolint:errcheck // never fails, see crypto/rand
	rand.Read(secret) //nolint:errcheck // as above
	e = Entry{ID: hex.EncodeToString(id), Tenant: tenant}
	text = prefix + e.ID + "-" + secretText.EncodeToString(secret)
	hash := sha256.Sum256([]byte(text))
	e.Hash = hashPrefix + hex.EncodeToString(hash[:])
	return text, e
}

// parse splits a key; ok says that it has a key's form.
func parse(text string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(text, prefix)
	if !ok || len(rest) != idLength+1+secretText.EncodedLen(secretBytes) || rest[idLength] != '-' {
		return "", false
	}
	return rest[:idLength], true
}

// bearer is the key of an Authorization header (RFC 6750); "" if there is none.
func bearer(header string) string {
	scheme, key, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(key)
}
