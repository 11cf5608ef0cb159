package tokenizer

/*
#cgo LDFLAGS: -ltokenizers -ldl -lm -lstdc++
#include "millrace_text.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	hf "github.com/daulet/tokenizers"
)

// library is the tokenizers library with the errors that its Go package drops, where a failed call
// returns an empty result. Truncation and padding of tokenizer.json are off.
type library struct {
	hf *hf.Tokenizer
}

func openLibrary(data []byte) (*library, error) {
	lib, err := hf.FromBytes(data)
	if err != nil {
		return nil, err
	}
	return &library{hf: lib}, nil
}

func (l *library) close() error { return l.hf.Close() }

// encode returns the ids of text. Special tokens that cover one of the ascending byte offsets plain are text like any
// other.
func (l *library) encode(text string, addSpecial bool, plain []int) ([]int32, error) {
	offsets := make([]C.size_t, len(plain))
	for i, at := range plain {
		offsets[i] = C.size_t(at)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var out C.millrace_text_ids
	if C.millrace_text_encode(l.pointer(), (*C.uint8_t)(unsafe.StringData(text)), C.size_t(len(text)), C.bool(addSpecial),
		unsafe.SliceData(offsets), C.size_t(len(offsets)), &out) != 0 { //nolint:gocritic // dupSubExpr: in what cgo makes of it
		return nil, lastError()
	}
	defer C.millrace_text_ids_free(out)
	ids := make([]int32, out.len)
	copy(ids, unsafe.Slice((*int32)(unsafe.Pointer(out.data)), len(ids)))
	return ids, nil
}

// decode returns the text of ids, none of which is negative.
func (l *library) decode(ids []int32, skipSpecial bool) (string, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	raw := unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(ids))), len(ids)) // a copy costs 4% of a call
	if text := l.hf.Decode(raw, skipSpecial); text != "" {
		return text, nil
	}
	return "", lastError()
}

// lastError returns the error of this thread's last call of the library, or nil. A failed call has an
// empty result, so that a call with a result needs no check.
func lastError() error {
	var message C.millrace_jinja_bytes
	if C.millrace_text_error(&message) == 0 { //nolint:gocritic // the duplicate is in what cgo makes of it
		return nil
	}
	defer C.millrace_jinja_bytes_free(message)
	if message.len == 0 {
		return errors.New("no reason given")
	}
	return fmt.Errorf("%s", unsafe.Slice((*byte)(message.data), int(message.len)))
}
