// Package mapped maps files into memory. If a mapped file is cut short, reading a page past its end
// raises SIGBUS in the thread that reads it, Go's or a kernel's. For a file of this package that ends
// the process with status 1 and one line on standard error that names the file.
//
// It must not know what the files contain.
package mapped

/*
#include <stdlib.h>
#include "guard.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrChanged means that a file changed its size while it was mapped.
var ErrChanged = errors.New("the file is being written")

// guarding serializes changes of the one list that the signal's handler reads.
var guarding sync.Mutex

// File maps size bytes of an open file, all of it, read-only, with the given flags of mmap.
// The name in messages is path. A file whose size is another one before or after is ErrChanged.
func File(f *os.File, path string, size int64, flags int) ([]byte, error) {
	err := checkSize(f, path, size)
	if err != nil {
		return nil, err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, flags)
	if err != nil {
		return nil, fmt.Errorf("%s: map %d bytes: %w", path, size, err)
	}
	err = errors.Join(guard(m, path), checkSize(f, path, size))
	if err != nil {
		return nil, errors.Join(err, Unmap(m))
	}
	return m, nil
}

func checkSize(f *os.File, path string, size int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != size {
		return fmt.Errorf("%s: %w: found %d bytes, expected %d, as before: start again when it is complete", path, ErrChanged, info.Size(),
			size)
	}
	return nil
}

func guard(m []byte, path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	guarding.Lock()
	defer guarding.Unlock()
	if code := C.millrace_guard_add(address(m), C.size_t(len(m)), name); code != 0 {
		return fmt.Errorf("%s: handler of SIGBUS: %w", path, syscall.Errno(code))
	}
	return nil
}

// Unmap unmaps what File returned.
func Unmap(m []byte) error {
	guarding.Lock()
	C.millrace_guard_remove(address(m))
	guarding.Unlock()
	return unix.Munmap(m)
}

func address(m []byte) C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(m)))) }
