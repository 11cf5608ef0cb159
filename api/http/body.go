package httpapi

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/millrace/millrace/api"
)

// body reads the whole body up to the maximum size, and decompresses it. Package httpserver sets its deadline.
func (s *server) body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	decompress, err := decompressor(w, r)
	if err != nil {
		return nil, err
	}
	if r.ContentLength > s.opts.MaxBody {
		return nil, s.tooLarge() // without reading it
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.opts.MaxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, s.tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &api.Error{Code: http.StatusRequestTimeout, Reason: "body_timeout",
			Message: "the body did not arrive in time, expected a steady one"}
	case err != nil:
		return nil, api.Invalid("", "the body could not be read: %v", err)
	}
	return decompress(body, s)
}

// decompressor returns what makes the text of a body with the request's Content-Encoding. It is chosen before the body is read.
func decompressor(w http.ResponseWriter, r *http.Request) (func([]byte, *server) ([]byte, error), error) {
	switch encoding := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
		return func(body []byte, _ *server) ([]byte, error) { return body, nil }, nil
	case "gzip", "x-gzip":
		return gunzip, nil
	default:
		w.Header().Set("Accept-Encoding", "gzip")
		return nil, &api.Error{Code: http.StatusUnsupportedMediaType, Reason: "unsupported_encoding",
			Message: fmt.Sprintf("found a body with Content-Encoding %s, expected gzip or none", api.Quote(encoding))}
	}
}

// gunzip decompresses a body. The maximum size counts for the result too: a small body may become a thousand times as large.
func gunzip(body []byte, s *server) ([]byte, error) {
	notGzip := func(err error) error {
		return api.Invalid("", "found a body that is not gzip (%v), expected what Content-Encoding names", err)
	}
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, notGzip(err)
	}
	text, err := io.ReadAll(io.LimitReader(z, s.opts.MaxBody+1))
	switch {
	case err != nil:
		return nil, notGzip(err)
	case int64(len(text)) > s.opts.MaxBody:
		return nil, s.tooLarge()
	}
	return text, nil
}

func (s *server) tooLarge() error {
	return &api.Error{Code: api.CodeTooLarge, Message: fmt.Sprintf("found a body larger than %d bytes, expected at most that",
		s.opts.MaxBody)}
}

// uncompressed refuses bodies with a Content-Encoding: handle reads them as they arrive.
func uncompressed(handle handlerFunc) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
			return &api.Error{Code: http.StatusUnsupportedMediaType, Reason: "unsupported_encoding",
				Message: fmt.Sprintf("found a body with Content-Encoding %s, expected none", api.Quote(encoding))}
		}
		return handle(w, r)
	}
}
