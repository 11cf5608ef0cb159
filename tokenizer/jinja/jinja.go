// Package jinja renders chat templates as transformers renders them. It is minijinja with a C ABI
// (src/), in the archive that also holds the tokenizers library.
//
// It must not know tokens or models.
package jinja

/*
#cgo LDFLAGS: -ltokenizers -ldl -lm -lstdc++
#include "millrace_jinja.h"
#if __has_include("archive_id.h")
#include "archive_id.h" // written by the build: a new archive is linked anew
#endif
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
	"unsafe"
)

var (
	// ErrTemplate means the template is wrong, or does not fit what it was given.
	ErrTemplate = errors.New("chat template")
	// ErrLimit means that a render exceeded one of its Limits, or the compilation its own.
	ErrLimit = errors.New("chat template: over its limit")
)

// RaisedError is the message with which the template itself refused its input (raise_exception).
type RaisedError struct{ Message string }

func (e *RaisedError) Error() string { return e.Message }

// Limits bounds one render. All of them must be set.
type Limits struct {
	Steps     uint64 // instructions of the template engine
	Output    int    // bytes written
	Memory    int    // bytes held at once, without the variables
	Allocated int    // bytes allocated in all, freed ones counted; 256 more for each allocation
}

// Template is a compiled template, safe for use by many goroutines at once.
type Template struct {
	ptr unsafe.Pointer
}

// Compile parses source. Errors are ErrTemplate with the engine's message and line,
// or ErrLimit where its constant expressions alone take too much memory.
func Compile(source string) (*Template, error) {
	t := &Template{}
	var out C.millrace_jinja_bytes
	if code := C.millrace_jinja_compile(stringData(source), C.size_t(len(source)), &t.ptr, &out); code != C.MILLRACE_JINJA_OK {
		return nil, failure(code, take(out))
	}
	runtime.AddCleanup(t, func(p unsafe.Pointer) { C.millrace_jinja_template_free(p) }, t.ptr)
	return t, nil
}

// Render runs the template over a JSON object of variables; the order of keys is kept. now is what
// strftime_now shows, in UTC. Errors are *RaisedError, ErrLimit or ErrTemplate.
func (t *Template) Render(variables []byte, now time.Time, l Limits) (string, error) {
	var out C.millrace_jinja_bytes
	limits := C.millrace_jinja_limits{
		steps: C.uint64_t(l.Steps), output: C.size_t(l.Output), memory: C.size_t(l.Memory), allocated: C.size_t(l.Allocated),
	}
	code := C.millrace_jinja_render(t.ptr, (*C.uint8_t)(unsafe.SliceData(variables)), C.size_t(len(variables)),
		C.int64_t(now.Unix()), &limits, &out)
	runtime.KeepAlive(t)
	text := take(out)
	if code != C.MILLRACE_JINJA_OK {
		return "", failure(code, text)
	}
	return text, nil
}

func failure(code C.int32_t, message string) error {
	switch code {
	case C.MILLRACE_JINJA_RAISED:
		return &RaisedError{Message: message}
	case C.MILLRACE_JINJA_LIMIT:
		return fmt.Errorf("%w: %s", ErrLimit, message)
	default:
		return fmt.Errorf("%w: %s", ErrTemplate, strings.TrimSpace(message))
	}
}

// take copies the library's bytes and gives them back.
func take(b C.millrace_jinja_bytes) string {
	if b.len == 0 {
		C.millrace_jinja_bytes_free(b)
		return ""
	}
	s := string(unsafe.Slice((*byte)(b.data), int(b.len)))
	C.millrace_jinja_bytes_free(b)
	return s
}

func stringData(s string) *C.uint8_t { return (*C.uint8_t)(unsafe.StringData(s)) }
