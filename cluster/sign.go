package cluster

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// Key signs a node's beats. A node makes one when it starts. Its name comes from the key, so that no
// other process can send beats in its name, not even before its first one.
type Key struct{ private ed25519.PrivateKey }

// NewKey returns a new random key.
func NewKey() Key {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	return Key{private}
}

// Node returns the number of the key's node.
func (k Key) Node() Node { return nodeOf(k.public()) }

func (k Key) public() ed25519.PublicKey { return ed25519.PublicKey(k.private[ed25519.SeedSize:]) }

func nodeOf(key ed25519.PublicKey) Node {
	sum := sha256.Sum256(key)
	return Node(max(binary.BigEndian.Uint32(sum[:]), 1))
}

// Headers of a beat. The data is a Member in JSON.
const (
	keyHeader       = "Millrace-Key"
	countHeader     = "Millrace-Count" // of the node's beats
	signatureHeader = "Millrace-Signature"
)

// largestBeat bounds the data of a beat, in bytes; one has about 1,000.
const largestBeat = 64 << 10

// signedBytes returns the bytes that a signature covers. The first line keeps them apart from
// anything else that a key may sign.
func signedBytes(count uint64, data []byte) []byte {
	b := append(make([]byte, 0, 64+len(data)), "millrace beat 2\n"...)
	return append(binary.BigEndian.AppendUint64(b, count), data...)
}

// sign returns a node's beat number count, from 1.
func (k Key) sign(count uint64, data []byte) *nats.Msg {
	return &nats.Msg{Subject: BeatSubject, Data: data, Header: nats.Header{
		keyHeader:       {base64.RawStdEncoding.EncodeToString(k.public())},
		countHeader:     {strconv.FormatUint(count, 10)},
		signatureHeader: {base64.RawStdEncoding.EncodeToString(ed25519.Sign(k.private, signedBytes(count, data)))},
	}}
}

// beat is a beat as received, not verified.
type beat struct {
	key       ed25519.PublicKey
	count     uint64
	signature []byte
	data      []byte
}

// errNoBeat is the error for a malformed message, as opposed to a forged one.
var errNoBeat = errors.New("cluster: no beat")

func readBeat(m *nats.Msg) (b beat, err error) {
	if len(m.Data) > largestBeat {
		return b, fmt.Errorf("%w: found %d bytes, expected at most %d", errNoBeat, len(m.Data), largestBeat)
	}
	if b.key, err = readBytes(m, keyHeader, ed25519.PublicKeySize); err != nil {
		return b, err
	}
	if b.signature, err = readBytes(m, signatureHeader, ed25519.SignatureSize); err != nil {
		return b, err
	}
	if b.count, err = strconv.ParseUint(m.Header.Get(countHeader), 10, 64); err != nil {
		return b, fmt.Errorf("%w: %s: expected a number", errNoBeat, countHeader)
	}
	b.data = m.Data
	return b, nil
}

func readBytes(m *nats.Msg, header string, size int) ([]byte, error) {
	text := m.Header.Get(header)
	if len(text) != base64.RawStdEncoding.EncodedLen(size) {
		return nil, fmt.Errorf("%w: %s: found %d characters, expected %d", errNoBeat, header, len(text),
			base64.RawStdEncoding.EncodedLen(size))
	}
	data, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errNoBeat, header, err)
	}
	return data, nil
}

// signers remembers the key of each name and the number of its last beat: a replayed beat neither
// revives a node nor ends it.
type signers struct{ known map[string]*signer }

type signer struct {
	key   ed25519.PublicKey
	count uint64
	last  time.Time // when the last beat arrived
}

const (
	// mostSigners bounds the names that are remembered.
	mostSigners = 10_000
	// remember is how long a name is remembered after its last beat.
	remember = time.Hour
)

func newSigners() *signers { return &signers{known: make(map[string]*signer)} }

// open verifies that its node signed a beat and that it is newer than the last one.
func (s *signers) open(now time.Time, b beat) (m Member, err error) {
	name := nodeOf(b.key).String()
	k := s.known[name]
	switch {
	case k != nil && !k.key.Equal(b.key):
		return m, fmt.Errorf("cluster: a beat of %s is signed with another key than its first one", name)
	case k != nil && b.count <= k.count:
		return m, fmt.Errorf("cluster: beat %d of %s came after beat %d", b.count, name, k.count)
	case !ed25519.Verify(b.key, signedBytes(b.count, b.data), b.signature):
		return m, fmt.Errorf("cluster: a beat of %s is not signed with its key", name)
	}
	if err := json.Unmarshal(b.data, &m); err != nil {
		return m, fmt.Errorf("%w: %w", errNoBeat, err)
	}
	if m.Node != name {
		return m, fmt.Errorf("cluster: a beat of %s says that it is of %q", name, m.Node)
	}
	if k == nil {
		if !s.makeRoom(now) {
			return m, fmt.Errorf("cluster: found one node too many, %s, expected at most %d", name, mostSigners)
		}
		k = &signer{key: b.key}
		s.known[name] = k
	}
	k.count, k.last = b.count, now
	return m, nil
}

// makeRoom says whether one more name fits, once old ones are forgotten.
func (s *signers) makeRoom(now time.Time) bool {
	if len(s.known) < mostSigners {
		return true
	}
	s.forget(now, forget)
	return len(s.known) < mostSigners
}

// forget drops the names without a beat for longer than after.
func (s *signers) forget(now time.Time, after time.Duration) {
	maps.DeleteFunc(s.known, func(_ string, k *signer) bool { return now.Sub(k.last) > after })
}
