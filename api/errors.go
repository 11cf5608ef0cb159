package api

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/compute/sample"
)

// Code is the class of an error. Each interface maps it to its own status.
type Code int

// The classes of errors.
const (
	CodeInvalid      Code = 400
	CodeUnauthorized Code = 401
	CodeNotFound     Code = 404
	CodeTooLarge     Code = 413
	CodeOverloaded   Code = 429 // a valid request; RetryAfter says when to send it again
	CodeInternal     Code = 500
	CodeUnavailable  Code = 503 // loading, draining, or without progress
	CodeTimeout      Code = 504 // the request's own deadline passed
)

// Error is an error that a client receives.
type Error struct {
	Code       Code
	Param      string        // the invalid field, such as "messages[0].role"
	Message    string        // what was found, then what was expected
	Reason     string        // a stable word for programs, such as "model_not_found"; may be empty
	RetryAfter time.Duration // with CodeOverloaded and CodeUnavailable
}

func (e *Error) Error() string { return e.Message }

// Invalid returns an error about one field of the request.
func Invalid(param, format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Param: param, Message: fmt.Sprintf(format, args...)}
}

// maxQuoted bounds what an error repeats of a request, in characters.
const maxQuoted = 64

// Quote returns a value of a request in quotes, for the text of an error: at most 64 characters of it, with "..." for the rest. A longer
// one would come back whole and fill logs.
func Quote(value string) string {
	if cut := Cut(value); cut != value {
		return strconv.Quote(cut) + "..."
	}
	return strconv.Quote(value)
}

// Cut returns at most the first 64 characters of a text.
func Cut(text string) string {
	n := 0
	for i := range text {
		if n++; n > maxQuoted {
			return text[:i]
		}
	}
	return text
}

// Logged returns what a log keeps of a request's error. The text of an error of the client's may repeat a part of a prompt, so the class
// and the field are left of it.
func Logged(err error) error {
	var e *Error
	if !errors.As(err, &e) || e.Code >= CodeInternal {
		return err
	}
	text := fmt.Sprintf("%d", e.Code)
	if e.Reason != "" {
		text += " " + e.Reason
	}
	if e.Param != "" {
		text += ": " + Cut(e.Param)
	}
	return errors.New(text)
}

// TooLong returns an Invalid error about text that exceeds the model's context.
func TooLong(param, format string, args ...any) *Error {
	e := Invalid(param, format, args...)
	e.Reason = "context_length_exceeded"
	return e
}

// Unavailable returns the error of a server that cannot serve a request now because of err.
func Unavailable(err error) *Error {
	return &Error{Code: CodeUnavailable, RetryAfter: 5 * time.Second, Message: err.Error()}
}

// StageFailed returns the error of a request after a stage of the pipeline panicked with v.
func StageFailed(stage string, v any) *Error {
	return &Error{Code: CodeInternal, Message: fmt.Sprintf("the %s stage failed: %v", stage, v)}
}

// GrammarWithBeams returns the error of a grammar, named by its parameter, together with a beam search.
func GrammarWithBeams(param string) *Error {
	return Invalid(param, "%s: not supported together with use_beam_search", param)
}

// LossyWithBeams returns the error of a beam search where beams cannot share the slabs of a worker.
func LossyWithBeams() *Error {
	return Invalid("use_beam_search",
		"found a beam search, expected none with this --kv-type or --kv-eviction, or with a model whose layers keep a state")
}

// InvalidParam returns an Invalid error for a *sample.ParamError.
func InvalidParam(err error) *Error {
	if p, ok := errors.AsType[*sample.ParamError](err); ok {
		return Invalid(p.Field, "found %s, expected %s", p.Found, p.Expected)
	}
	return Invalid("", "%v", err)
}

// GrammarError returns the error of a request whose grammar cannot be compiled, or failed while it was followed.
func GrammarError(s *grammar.Spec, err error) *Error {
	switch {
	case errors.Is(err, grammar.ErrSpec):
		return Invalid(s.Param, "%s: %v", s.Param, err)
	case errors.Is(err, grammar.ErrBusy):
		return &Error{Code: CodeOverloaded, Param: s.Param, RetryAfter: time.Second, Message: fmt.Sprintf("%s: %v", s.Param, err)}
	}
	return &Error{Code: CodeInternal, Param: s.Param, Message: fmt.Sprintf("%s: %v", s.Param, err)}
}

// AsError returns err as an *Error for a client. The text of any other error stays in the server:
// the client gets "internal error".
func AsError(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Code: CodeTimeout, Message: "the request's deadline passed"}
	case errors.Is(err, context.Canceled):
		return &Error{Code: CodeUnavailable, Reason: "cancelled", Message: "the request was cancelled"}
	}
	return &Error{Code: CodeInternal, Message: "internal error"}
}

// Failure returns the error that an event ends its request with, nil if it does not. A cancelled
// choice is an error for a client that still reads: the answer is incomplete, and OpenAI has no
// finish reason for that.
func Failure(ev Event) *Error {
	switch ev.Finish {
	case FinishError, FinishCancelled:
	default:
		return nil
	}
	if ev.Err != nil {
		return AsError(ev.Err)
	}
	if ev.Finish == FinishCancelled {
		return AsError(context.Canceled)
	}
	return AsError(nil)
}
