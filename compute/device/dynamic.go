package device

/*
#include <dlfcn.h>
#include <stdlib.h>
#include "backend.h"

typedef const mr_backend* (*backend_entry)(void);
typedef void (*describe_entry)(char*, size_t);

static const mr_backend* call_backend(void* f) { return ((backend_entry)f)(); }
static void call_describe(void* f, char* out, size_t size) { ((describe_entry)f)(out, size); }
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"
)

// ErrNoLibrary says that an optional backend is not installed.
var ErrNoLibrary = errors.New("no library")

// Optional lists the backends that are shared libraries, for GPUs: `make NAME` builds libmillrace_NAME.so.
func Optional() []string { return []string{"sycl", "cuda"} }

// IsOptional says whether a backend is a shared library.
func IsOptional(backend string) bool { return slices.Contains(Optional(), backend) }

// FindLibrary returns the path of an optional backend's library: beside the
// executable, in the lib folder next to its folder, or in build/lib there, as
// in a checkout. Other folders are not searched: a library is code.
func FindLibrary(backend string) (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoLibrary, err)
	}
	if target, err := filepath.EvalSymlinks(exe); err == nil {
		exe = target
	}
	dir, name := filepath.Dir(exe), "libmillrace_"+backend+".so"
	for _, at := range []string{dir, filepath.Join(dir, "..", "lib"), filepath.Join(dir, "..", "build", "lib")} {
		path := filepath.Join(at, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: %s is neither in %s nor in ../lib nor in ../build/lib: build it with make %s", ErrNoLibrary, name, dir,
		backend)
}

// symbol loads a shared library, which is never unloaded, and finds a function.
func symbol(path, name string) (unsafe.Pointer, error) {
	cPath, cName := C.CString(path), C.CString(name)
	defer C.free(unsafe.Pointer(cPath))
	defer C.free(unsafe.Pointer(cName))
	library := C.dlopen(cPath, C.RTLD_NOW|C.RTLD_LOCAL)
	if library == nil {
		return nil, fmt.Errorf("%w: %s", ErrUnsupported, C.GoString(C.dlerror()))
	}
	f := C.dlsym(library, cName)
	if f == nil {
		return nil, fmt.Errorf("%w: %s", ErrUnsupported, C.GoString(C.dlerror()))
	}
	return f, nil
}

// loadBackend loads an optional backend from its shared library; path "" searches for it.
func loadBackend(backend, path string) (*C.mr_backend, error) {
	var err error
	if path == "" {
		if path, err = FindLibrary(backend); err != nil {
			return nil, err
		}
	}
	f, err := symbol(path, "millrace_backend")
	if err != nil {
		return nil, err
	}
	return C.call_backend(f), nil
}

// DescribeDevices describes every device that the backend of a shared library finds, a line each.
func DescribeDevices(path string) ([]string, error) {
	f, err := symbol(path, "millrace_describe_devices")
	if err != nil {
		return nil, err
	}
	out := make([]byte, 1<<14)
	C.call_describe(f, (*C.char)(unsafe.Pointer(unsafe.SliceData(out))), C.size_t(len(out)))
	text, _, _ := strings.Cut(string(out), "\x00")
	if message, ok := strings.CutPrefix(text, "error: "); ok {
		return nil, errors.New(strings.TrimSpace(message))
	}
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }), nil
}
