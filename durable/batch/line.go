package batch

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/jsonbody"
)

// Line is a line of a batch's file: one request.
type Line struct {
	CustomID string          `json:"custom_id"`
	Method   string          `json:"method"`
	URL      string          `json:"url"`
	Body     json.RawMessage `json:"body"`
}

// Limits of a file.
const (
	MaxLines    = 50_000 // as OpenAI's
	maxCustomID = 512    // bytes
	maxFaults   = 50     // that a failed batch lists
)

// Result is a line of a file of results or of errors.
type Result struct {
	ID       string    `json:"id"`
	CustomID string    `json:"custom_id"`
	Response *Response `json:"response"`
	Error    *Fault    `json:"error"`
}

// Response is what the endpoint answered.
type Response struct {
	StatusCode int             `json:"status_code"`
	RequestID  string          `json:"request_id"`
	Body       json.RawMessage `json:"body"`
}

// OK reports whether the result belongs into the file of results. All others are errors.
func (r *Result) OK() bool {
	return r.Error == nil && r.Response != nil && r.Response.StatusCode == 200
}

func (r *Result) encode() ([]byte, error) {
	text, err := api.Marshal(r)
	return append(text, '\n'), err
}

// key returns the name of a line, which is the same whenever and wherever it runs: its call's ID and its seed come from it.
func key(batch string, line int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", batch, line))
	return hex.EncodeToString(sum[:16])
}

// fileID returns the ID of a file that a batch writes, the same at each attempt.
func fileID(batch, what string) string {
	sum := sha256.Sum256([]byte(batch + "/" + what))
	return "file-" + hex.EncodeToString(sum[:12])
}

// byteOrderMark is what editors and PowerShell write before the first line of a file.
const byteOrderMark = "\ufeff"

// errLong is the error of a line that does not fit into a message of the queue.
var errLong = errors.New("batch: line too long")

// lines reads a file line by line. Empty lines at the end are none.
type lines struct {
	r     *bufio.Reader
	limit int // bytes of a line
	text  []byte
}

func newLines(r io.Reader, limit int) *lines {
	const buffer = 64 << 10
	in := bufio.NewReaderSize(r, buffer)
	if mark, _ := in.Peek(len(byteOrderMark)); string(mark) == byteOrderMark { // an error comes back with the first line
		in.Discard(len(byteOrderMark)) //nolint:errcheck // Peek has read it
	}
	return &lines{r: in, limit: limit}
}

// next returns the next line without its end, valid until the next call. io.EOF is the end; errLong a line above the limit, after which the
// next one can be read.
func (l *lines) next() ([]byte, error) {
	for {
		err := l.read()
		if errors.Is(err, io.EOF) && len(l.text) > 0 {
			err = nil
		}
		if err != nil {
			return nil, err
		}
		if text := bytes.TrimSpace(l.text); len(text) > 0 {
			return text, nil
		}
	}
}

func (l *lines) read() error {
	l.text = l.text[:0]
	long := false
	for {
		part, err := l.r.ReadSlice('\n')
		if long = long || len(l.text)+len(part) > l.limit; !long {
			l.text = append(l.text, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case long && (err == nil || errors.Is(err, io.EOF)):
			return errLong
		}
		return err
	}
}

// check reads a line, and returns what is wrong with it.
func check(text []byte, endpoint string) (Line, *Fault) {
	var l Line
	if err := jsonbody.Check(text); err != nil { // otherwise the custom_id of the result would be another one
		return l, &Fault{Code: "invalid_json_line", Message: "the line: " + err.Error()}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	err := d.Decode(&l)
	if err == nil && d.More() {
		err = errors.New("found more than one value")
	}
	switch {
	case err != nil:
		return l, &Fault{Code: "invalid_json_line",
			Message: "the line is not one JSON object with custom_id, method, url and body: " + err.Error()}
	case l.CustomID == "" || len(l.CustomID) > maxCustomID:
		return l, &Fault{Code: "invalid_custom_id", Param: "custom_id",
			Message: fmt.Sprintf("custom_id: found %d bytes, expected 1 to %d", len(l.CustomID), maxCustomID)}
	case l.Method != "POST":
		return l, &Fault{Code: "invalid_method", Param: "method", Message: fmt.Sprintf("method: found %.20q, expected \"POST\"", l.Method)}
	case l.URL != endpoint:
		return l, &Fault{Code: "invalid_url", Param: "url",
			Message: fmt.Sprintf("url: found %.100q, expected the batch's endpoint %q", l.URL, endpoint)}
	case !strings.HasPrefix(string(l.Body), "{"):
		return l, &Fault{Code: "invalid_body", Param: "body", Message: "body: expected an object"}
	}
	return l, nil
}

// checkFile reads a whole file. It returns the number of its lines, or the faults of the first bad ones. An error is one of reading.
func checkFile(r io.Reader, endpoint string, limit int) (n int, faults []Fault, err error) {
	in := newLines(r, limit)
	seen := map[[8]byte]bool{}
	fault := func(f Fault) {
		f.Line = n
		faults = append(faults, f)
	}
	for len(faults) < maxFaults {
		text, err := in.next()
		if errors.Is(err, io.EOF) {
			break
		}
		n++
		switch {
		case errors.Is(err, errLong):
			fault(Fault{Code: "line_too_large", Message: fmt.Sprintf("found a line larger than %d bytes, expected at most that", limit)})
			continue
		case err != nil:
			return 0, nil, err
		case n > MaxLines:
			fault(Fault{Code: "too_many_lines", Message: fmt.Sprintf("found more than %d lines, expected at most that", MaxLines)})
			return n, faults, nil
		}
		l, f := check(text, endpoint)
		if f != nil {
			fault(*f)
			continue
		}
		sum := sha256.Sum256([]byte(l.CustomID))
		if id := [8]byte(sum[:8]); seen[id] {
			fault(Fault{Code: "duplicate_custom_id", Param: "custom_id",
				Message: fmt.Sprintf("custom_id: found %.100q a second time, expected another one on each line", l.CustomID)})
		} else {
			seen[id] = true
		}
	}
	if n == 0 {
		faults = append(faults, Fault{Code: "empty_file", Message: "found no line, expected at least one request"})
	}
	return n, faults, nil
}

// failed returns the result of a line that the endpoint refused.
func failed(id string, l *Line, e *api.Error, body []byte) *Result {
	return &Result{ID: "batch_req_" + id, CustomID: l.CustomID, Response: &Response{StatusCode: int(e.Code), RequestID: id, Body: body}}
}

// answered returns the result of a line with an answer.
func answered(id string, l *Line, body []byte) *Result {
	return &Result{ID: "batch_req_" + id, CustomID: l.CustomID, Response: &Response{StatusCode: 200, RequestID: id, Body: body}}
}

// unanswered returns the result of a line without an answer.
func unanswered(id, customID string, f Fault) *Result {
	return &Result{ID: "batch_req_" + id, CustomID: customID, Error: &f}
}
