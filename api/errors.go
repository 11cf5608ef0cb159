package api

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/compute/sample"
)

// Code classes an error; each interface maps it to its own status.
type Code int

// Classes of errors.
const (
	CodeInvalid      Code = 400
	CodeUnauthorized Code = 401
	CodeNotFound     Code = 404
	CodeTooLarge     Code = 413
	CodeOverloaded   Code = 429 // the request itself is fine; RetryAfter says when
	CodeInternal     Code = 500
	CodeUnavailable  Code = 503 // loading, draining, or steps do not progress
	CodeTimeout      Code = 504 // the request's own deadline passed
)

// Error is what a client is told.
type Error struct {
	Code       Code
	Param      string // the field at fault, "messages[0].role"
	Message    string // found and expected
	Reason     string // a stable word for programs: "model_not_found", "context_length_exceeded"; may be empty
	RetryAfter time.Duration
}

func (e *Error) Error() string { return e.Message }

// Invalid is an error about one field of the request.
func Invalid(param, format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Param: param, Message: fmt.Sprintf(format, args...)}
}

// TooLong is an Invalid error about text that exceeds the model's context.
func TooLong(param, format string, args ...any) *Error {
	e := Invalid(param, format, args...)
	e.Reason = "context_length_exceeded"
	return e
}

// Unavailable is the error of a server that cannot serve a request now, because of err.
func Unavailable(err error) *Error {
	return &Error{Code: CodeUnavailable, RetryAfter: 5 * time.Second, Message: err.Error()}
}

// StageFailed is the error of a request during which a stage of the pipeline panicked with v.
func StageFailed(stage string, v any) *Error {
	return &Error{Code: CodeInternal, Message: fmt.Sprintf("the %s stage failed: %v", stage, v)}
}

// InvalidParam is an Invalid error made of a *sample.ParamError.
func InvalidParam(err error) *Error {
	if p, ok := errors.AsType[*sample.ParamError](err); ok {
		return Invalid(p.Field, "found %s, expected %s", p.Found, p.Expected)
	}
	return Invalid("", "%v", err)
}

// AsError is err as the *Error that a client is told. What is no *Error
// is the server's own affair, and its words stay here.
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

// Failure is the error that an event ends the request with; nil when it does not. A cancelled choice is an error to a client that still reads: what it has
// is not the whole answer, and OpenAI's finish reasons have no word for it.
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
