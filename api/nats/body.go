package natsapi

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/jsonbody"
	"github.com/millrace/millrace/api/nats/bodies"
)

// Limits of the bodies that arrive in parts: their memory as multiples of Options.MaxBody, and their
// time.
const (
	maxBodies      = 32
	maxBodiesOfKey = 8
	bodyIdle       = 30 * time.Second
	bodyAge        = 5 * time.Minute
)

// partHeaders is the space for the headers of a part, in bytes. NATS counts them as payload.
const partHeaders = 4 << 10

// partSize returns the maximum size of a part, in bytes, for a server's maximum payload.
func partSize(maxPayload int64) int { return int(max(maxPayload-partHeaders, maxPayload/2, 1)) }

// acceptParts is the value of HeaderAccept of a client that accepts an answer in parts.
const acceptParts = "parts"

// uploads holds the incomplete bodies of all keys.
type uploads struct {
	mu    sync.Mutex
	store *bodies.Store
	timer *time.Timer // expires bodies; nil: there are none
}

func newUploads(o *Options) *uploads {
	share := maxBodiesOfKey
	if o.Keys == nil { // all clients are one owner
		share = maxBodies
	}
	return &uploads{store: bodies.New(bodies.Limits{Body: o.MaxBody, Owner: share * o.MaxBody, Total: maxBodies * o.MaxBody,
		Idle: bodyIdle, Age: bodyAge})}
}

// expire drops old bodies, and runs again until none are left.
func (u *uploads) expire() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.schedule(time.Now())
}

func (u *uploads) schedule(now time.Time) {
	u.timer = nil
	if next := u.store.Expire(now); !next.IsZero() {
		u.timer = time.AfterFunc(next.Sub(now), u.expire)
	}
}

func (u *uploads) open(id, key string, size int) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	err := u.store.Open(now, id, key, size)
	if u.timer == nil {
		u.schedule(now)
	}
	return bodyError(err, id)
}

func (u *uploads) add(id, key string, offset int, part []byte) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return bodyError(u.store.Add(time.Now(), id, key, offset, part), id)
}

func (u *uploads) take(id, key string) ([]byte, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	body, err := u.store.Take(time.Now(), id, key)
	return body, bodyError(err, id)
}

// bodyError returns the error for the client.
func bodyError(err error, id string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bodies.ErrTooLarge):
		return &api.Error{Code: api.CodeTooLarge, Message: "request body: " + err.Error()}
	case errors.Is(err, bodies.ErrFull):
		return &api.Error{Code: api.CodeOverloaded, Reason: "bodies_full", RetryAfter: time.Second, Message: err.Error()}
	case errors.Is(err, bodies.ErrUnknown):
		return &api.Error{Code: api.CodeNotFound, Reason: "body_not_found", Message: fmt.Sprintf(
			"%s: found no body %s at this gateway: it was used, or no part arrived for %s; send it again", HeaderBody, api.Quote(id),
			bodyIdle)}
	}
	return api.Invalid(HeaderPart, "%s: %v", HeaderPart, err)
}

// upload is the answer to a client that opens a body.
type upload struct {
	ID       string `json:"id"`       // for HeaderBody
	Subjects string `json:"subjects"` // this gateway's own: for the parts, and for the request
	Part     int    `json:"part"`     // bytes of a part, at most
}

// openBody reserves memory for a body that arrives in parts.
func (s *Service) openBody(_ context.Context, r *reply, body []byte) {
	var request struct {
		Size jsonbody.Integer `json:"size"`
	}
	if err := json.Unmarshal(body, &request); err != nil || request.Size <= 0 {
		r.fail(api.Invalid("size", `size: found no number above 0, expected {"size": bytes of the body}`))
		return
	}
	u := upload{ID: strings.ToLower(rand.Text()), Subjects: s.ownSubjects, Part: partSize(s.nc.MaxPayload())}
	if err := s.uploads.open(u.ID, r.key, int(request.Size)); err != nil {
		r.fail(err)
		return
	}
	answer, err := json.Marshal(u)
	if err != nil {
		r.fail(err)
		return
	}
	r.single(answer)
}

// addPart adds a part to a body. The headers have the body's id and the part's offset.
func (s *Service) addPart(_ context.Context, r *reply, part []byte) {
	offset, err := strconv.Atoi(r.request.Get(HeaderPart))
	if err != nil {
		r.fail(api.Invalid(HeaderPart, "%s: found %s, expected the offset of the part in the body", HeaderPart,
			api.Quote(r.request.Get(HeaderPart))))
		return
	}
	if err := s.uploads.add(r.request.Get(HeaderBody), r.key, offset, part); err != nil {
		r.fail(err)
		return
	}
	r.single([]byte("{}"))
}

// body returns the body of a request: that of the message, or the one that arrived in parts before it.
func (s *Service) body(m *nats.Msg, key string) ([]byte, error) {
	if id := m.Header.Get(HeaderBody); id != "" && m.Header.Get(HeaderPart) == "" {
		return s.uploads.take(id, key)
	}
	if len(m.Data) > s.opts.MaxBody {
		return nil, &api.Error{Code: api.CodeTooLarge,
			Message: fmt.Sprintf("found a request of %d bytes, expected at most %d", len(m.Data), s.opts.MaxBody)}
	}
	return m.Data, nil
}

// sendParts sends an answer in several messages, numbered "1/3" and so on.
func (r *reply) sendParts(body []byte) {
	size := partSize(r.nc.MaxPayload())
	n := (len(body) + size - 1) / size
	for i := range n {
		part := body[i*size : min((i+1)*size, len(body))]
		if r.send(&nats.Msg{Data: part, Header: nats.Header{HeaderPart: {fmt.Sprintf("%d/%d", i+1, n)}}}) != nil {
			return
		}
	}
}
