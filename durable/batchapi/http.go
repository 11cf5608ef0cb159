// Package batchapi serves OpenAI's files and batches over HTTP. It must not know NATS or how a line runs.
package batchapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/batches"
	"github.com/millrace/millrace/durable"
	"github.com/millrace/millrace/durable/batch"
	"github.com/millrace/millrace/durable/objects"
)

// Limits of uploads.
const (
	maxFile    = 200 << 20 // bytes, as OpenAI's limit for batches
	maxField   = 4 << 10   // bytes of a field of a form, and of a request for a batch
	maxBody    = 64 << 10
	maxName    = 256 // bytes of a file's name
	maxUploads = 32  // at once
	maxOfOne   = 4   // of a tenant
)

// Bounds of "expires_after", as OpenAI's.
const (
	shortestKeep = time.Hour
	longestKeep  = 30 * 24 * time.Hour
)

type server struct {
	files   *objects.Store
	batches *batch.Batches

	mu      sync.Mutex
	uploads map[string]int // running, by tenant
}

// Routes returns the routes of files and batches. If files is nil the server stores none, and each route answers so.
func Routes(files *objects.Store, b *batch.Batches) []batches.Route {
	s := &server{files: files, batches: b, uploads: map[string]int{}}
	routes := []batches.Route{
		{Path: "/v1/files", Methods: "GET, POST", Handle: s.allFiles},
		{Path: "/v1/files/{id}", Methods: "GET, DELETE", Handle: s.oneFile},
		{Path: "/v1/files/{id}/content", Methods: "GET", Handle: s.content},
		{Path: "/v1/batches", Methods: "GET, POST", Handle: s.allBatches},
		{Path: "/v1/batches/{id}", Methods: "GET", Handle: s.oneBatch},
		{Path: "/v1/batches/{id}/cancel", Methods: "POST", Handle: s.cancel},
	}
	if files == nil {
		for i := range routes {
			routes[i].Handle = off
		}
	}
	return routes
}

func off(http.ResponseWriter, *http.Request) error {
	return &api.Error{Code: api.CodeInvalid, Reason: "not_stored",
		Message: "this server stores no files and runs no batches (--batch-store 0, or no JetStream)"}
}

func answer(w http.ResponseWriter, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, err = w.Write(body)
	return err
}

func (s *server) allFiles(w http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodPost {
		return s.upload(w, r)
	}
	const most = 10_000
	var all []batches.File
	for _, o := range s.files.List(api.TenantFrom(r.Context())) {
		if purpose := r.URL.Query().Get("purpose"); purpose == "" || purpose == o.Fields[batch.FieldPurpose] {
			all = append(all, fileOf(&o))
		}
	}
	page, more, err := page(r, all, func(f *batches.File) string { return f.ID }, most, most)
	if err != nil {
		return err
	}
	list := batches.FileList{Object: "list", Data: page, HasMore: more}
	if len(page) > 0 {
		list.FirstID, list.LastID = &page[0].ID, &page[len(page)-1].ID
	}
	return answer(w, list)
}

// page returns the part of a list, the newest first, that a request names by "after", "limit" and "order".
func page[T any](r *http.Request, all []T, id func(*T) string, usual, most int) (list []T, more bool, err error) {
	q := r.URL.Query()
	switch order := q.Get("order"); order {
	case "", "desc":
	case "asc":
		slices.Reverse(all)
	default:
		return nil, false, api.Invalid("order", "order: found %.20q, expected asc or desc", order)
	}
	limit := usual
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > most {
			return nil, false, api.Invalid("limit", "limit: found %.20q, expected a number from 1 to %d", text, most)
		}
	}
	if after := q.Get("after"); after != "" {
		i := slices.IndexFunc(all, func(v T) bool { return id(&v) == after })
		if i < 0 {
			return nil, false, api.Invalid("after", "after: found %s, expected the id of one of the list", api.Quote(after))
		}
		all = all[i+1:]
	}
	if len(all) > limit {
		return all[:limit], true, nil
	}
	return append([]T{}, all...), false, nil // an empty list is not null
}

// begin takes a place for an upload.
func (s *server) begin(tenant string) (end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := 0
	for _, n := range s.uploads {
		all += n
	}
	if s.uploads[tenant] >= maxOfOne || all >= maxUploads {
		return nil, &api.Error{Code: api.CodeOverloaded, Reason: "uploads_full", RetryAfter: time.Second,
			Message: fmt.Sprintf("found %d uploads of the tenant and %d in all, expected fewer than %d and %d: try again",
				s.uploads[tenant], all,
				maxOfOne, maxUploads)}
	}
	s.uploads[tenant]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.uploads[tenant]--; s.uploads[tenant] == 0 {
			delete(s.uploads, tenant)
		}
	}, nil
}

// form is what an upload says about its file. Its fields may come before the file or after it.
type form struct {
	purpose, anchor, seconds string
}

// set takes a field.
func (f *form) set(p *multipart.Part) error {
	to := map[string]*string{"purpose": &f.purpose, "expires_after[anchor]": &f.anchor, "expires_after[seconds]": &f.seconds}[p.FormName()]
	text, err := io.ReadAll(io.LimitReader(p, maxField+1))
	switch {
	case err != nil:
		return bodyError(err)
	case len(text) > maxField:
		return api.Invalid("", "found a field of more than %d bytes, expected at most that", maxField)
	case to != nil:
		*to = string(text)
	}
	return nil
}

// check returns the time at which the file expires, zero if the form does not say.
func (f *form) check(now time.Time) (expires time.Time, err error) {
	if f.purpose != "batch" {
		return expires, api.Invalid("purpose", "purpose: found %.50q, expected \"batch\"", f.purpose)
	}
	if f.anchor != "" && f.anchor != "created_at" {
		return expires, api.Invalid("expires_after[anchor]", "expires_after[anchor]: found %.50q, expected \"created_at\"", f.anchor)
	}
	if f.seconds == "" {
		return expires, nil
	}
	seconds, err := strconv.ParseInt(f.seconds, 10, 64)
	if keep := time.Duration(seconds) * time.Second; err != nil || seconds > int64(longestKeep/time.Second) || keep < shortestKeep {
		return expires, api.Invalid("expires_after[seconds]", "expires_after[seconds]: found %.50q, expected %d to %d", f.seconds,
			int(shortestKeep.Seconds()), int(longestKeep.Seconds()))
	}
	return now.Add(time.Duration(seconds) * time.Second), nil
}

// upload stores a file while it arrives.
func (s *server) upload(w http.ResponseWriter, r *http.Request) (err error) {
	tenant := api.TenantFrom(r.Context())
	end, err := s.begin(tenant)
	if err != nil {
		return err
	}
	defer end()
	if err := s.files.Room(tenant); err != nil {
		return err
	}
	const frame = 64 << 10 // of the form, beside the file
	if r.ContentLength > maxFile+frame {
		return objects.TooLarge("file", maxFile)
	}
	parts, err := r.MultipartReader()
	if err != nil {
		return api.Invalid("", "the body is not a form (multipart/form-data) with purpose and file: %v", err)
	}
	var f form
	var o *objects.Object
	defer func() {
		if err != nil && o != nil {
			s.files.Delete(context.WithoutCancel(r.Context()), tenant, o.ID) //nolint:errcheck // it expires
		}
	}()
	const mostParts = 16
	for n := 0; ; n++ {
		p, err := parts.NextPart()
		switch {
		case errors.Is(err, io.EOF):
			if o == nil {
				return api.Invalid("file", "file: found none, expected one")
			}
			if o.Expires, err = s.expiry(&f, o); err != nil {
				return err
			}
			if err := s.files.Update(r.Context(), tenant, *o); err != nil {
				return err
			}
			return answer(w, fileOf(o))
		case err != nil:
			return bodyError(err)
		case n == mostParts:
			return api.Invalid("", "found more than %d parts of the form, expected purpose and file", mostParts)
		case p.FormName() != "file":
			if err := f.set(p); err != nil {
				return err
			}
		case o != nil:
			return api.Invalid("file", "file: found two, expected one")
		default:
			if f.purpose != "" { // before the file is read
				if _, err := f.check(time.Now()); err != nil {
					return err
				}
			}
			if o, err = s.store(r.Context(), tenant, p); err != nil {
				return err
			}
		}
	}
}

func (s *server) expiry(f *form, o *objects.Object) (time.Time, error) {
	at, err := f.check(o.Created)
	if err != nil || at.IsZero() || at.After(o.Expires) {
		return o.Expires, err
	}
	return at, nil
}

func (s *server) store(ctx context.Context, tenant string, p *multipart.Part) (*objects.Object, error) {
	name := strings.ToValidUTF8(p.FileName(), "")
	if name == "" {
		name = "file.jsonl"
	}
	o, err := s.files.Put(ctx, tenant, "file-"+strings.ReplaceAll(uuid.NewString(), "-", ""),
		map[string]string{batch.FieldName: name[:min(len(name), maxName)], batch.FieldPurpose: "batch"}, time.Time{},
		&limited{r: p, left: maxFile})
	if err != nil {
		return nil, err
	}
	return &o, nil
}

// limited is a file with a limit. Its errors are for the client.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, objects.TooLarge("file", maxFile)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = bodyError(err)
	}
	return n, err
}

// bodyError returns the client's error for a body that cannot be read.
func bodyError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &api.Error{Code: http.StatusRequestTimeout, Reason: "body_timeout",
			Message: "the body did not arrive in time, expected a steady one"}
	}
	return api.Invalid("", "the body could not be read: %v", err)
}

func (s *server) oneFile(w http.ResponseWriter, r *http.Request) error {
	tenant, id := api.TenantFrom(r.Context()), r.PathValue("id")
	o, err := s.files.Info(r.Context(), tenant, id)
	if err != nil {
		return err
	}
	if r.Method == http.MethodGet {
		return answer(w, fileOf(&o))
	}
	if b, used := s.batches.Uses(r.Context(), durable.TenantToken(tenant), id); used {
		return &api.Error{Code: http.StatusConflict, Reason: "file_in_use",
			Message: fmt.Sprintf("file %q is read by batch %q: wait for its end, or cancel it", id, b)}
	}
	if err := s.files.Delete(r.Context(), tenant, id); err != nil {
		return err
	}
	return answer(w, batches.Deleted{ID: id, Object: "file", Deleted: true})
}

func (s *server) content(w http.ResponseWriter, r *http.Request) error {
	o, from, err := s.files.Get(r.Context(), api.TenantFrom(r.Context()), r.PathValue("id"))
	if err != nil {
		return err
	}
	defer from.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(o.Size, 10))
	if r.Method == http.MethodHead {
		return nil
	}
	_, err = io.Copy(w, from)
	return err
}

func (s *server) allBatches(w http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodPost {
		return s.create(w, r)
	}
	var all []batches.Batch
	for _, one := range s.batches.List(r.Context()) {
		all = append(all, batchOf(one))
	}
	const usual, most = 20, 100
	page, more, err := page(r, all, func(b *batches.Batch) string { return b.ID }, usual, most)
	if err != nil {
		return err
	}
	list := batches.BatchList{Object: "list", Data: page, HasMore: more}
	if len(page) > 0 {
		list.FirstID, list.LastID = &page[0].ID, &page[len(page)-1].ID
	}
	return answer(w, list)
}

func (s *server) create(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		return &api.Error{Code: api.CodeTooLarge, Message: fmt.Sprintf("found a body larger than %d bytes, expected at most that", maxBody)}
	}
	if err != nil {
		return bodyError(err)
	}
	q, err := decodeBatch(body)
	if err != nil {
		return err
	}
	one, err := s.batches.Create(r.Context(), q)
	if err != nil {
		return err
	}
	return answer(w, batchOf(one))
}

func (s *server) oneBatch(w http.ResponseWriter, r *http.Request) error {
	one, err := s.batches.Get(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return answer(w, batchOf(one))
}

func (s *server) cancel(w http.ResponseWriter, r *http.Request) error {
	one, err := s.batches.Cancel(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return answer(w, batchOf(one))
}
