// Package llguidance is the grammar engine: the Rust crate llguidance over a model's vocabulary, in the archive that
// also holds the tokenizers library and the chat templates.
//
// It must not know requests, sequences or models.
package llguidance

/*
#cgo LDFLAGS: -ltokenizers -ldl -lm -lstdc++
#include "../jinja/millrace_grammar.h"
#if __has_include("../jinja/archive_id.h")
#include "../jinja/archive_id.h" // written by the build: a new archive is linked anew
#endif
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/millrace/millrace/compute/grammar"
)

// Token is one of a vocabulary.
type Token struct {
	Bytes   []byte // in a text; of a special token its name; nil: no such token
	Special bool   // no text matches it
}

// Engine compiles grammars over one vocabulary. It is a grammar.Engine.
type Engine struct {
	vocabulary unsafe.Pointer
	tokens     []Token
	ends       []int32
}

// The bounds of a compilation and of a call of a matcher. Memory is in bytes.
var (
	compileLimits = C.millrace_grammar_limits{memory: 256 << 20, allocated: 8 << 30, milliseconds: 5000}
	callLimits    = C.millrace_grammar_limits{memory: 256 << 20, allocated: 8 << 30, milliseconds: 5000}
)

// maxMessage bounds an error's text, in bytes.
const maxMessage = 300

// ErrEngine means that the engine failed at a grammar that it had compiled, or reached a limit.
var ErrEngine = errors.New("grammar engine")

// New makes an engine. tokenizer is a tokenizer of the tokenizers library, which spells texts that a grammar forces, and Close
// must come before it is freed. nil: the longest tokens spell them. ends are the tokens that may end an answer.
func New(tokenizer unsafe.Pointer, tokens []Token, ends []int32) (*Engine, error) {
	if len(ends) == 0 {
		return nil, errors.New("the model names no token that ends an answer")
	}
	e := &Engine{tokens: tokens, ends: ends}
	var data []byte
	offsets, special := make([]uint32, 1, len(tokens)+1), make([]byte, len(tokens))
	for i := range tokens {
		data = append(data, tokens[i].Bytes...)
		offsets = append(offsets, uint32(len(data)))
		if tokens[i].Special {
			special[i] = 1
		}
	}
	ids := make([]uint32, len(ends))
	for i, id := range ends {
		if int(id) >= len(tokens) {
			return nil, fmt.Errorf("the answer ends with token %d, expected one below %d", id, len(tokens))
		}
		ids[i], special[id] = uint32(id), 1
	}
	var out C.millrace_jinja_bytes
	code := C.millrace_grammar_vocabulary(tokenizer, (*C.uint8_t)(unsafe.SliceData(data)), (*C.uint32_t)(unsafe.SliceData(offsets)),
		(*C.uint8_t)(unsafe.SliceData(special)), C.size_t(len(tokens)), (*C.uint32_t)(unsafe.SliceData(ids)), C.size_t(len(ids)), &e.vocabulary, &out) //nolint:gocritic // the duplicate is in what cgo makes of it
	if err := failure(code, out); err != nil { //nolint:gocritic // as above
		return nil, err
	}
	runtime.AddCleanup(e, func(p unsafe.Pointer) { C.millrace_grammar_vocabulary_free(p) }, e.vocabulary)
	return e, nil
}

// Close lets go of the tokenizer. Programs and automatons may be used on.
func (e *Engine) Close() {
	C.millrace_grammar_vocabulary_close(e.vocabulary)
	runtime.KeepAlive(e)
}

// Size is one above the largest id.
func (e *Engine) Size() int { return len(e.tokens) }

// Bytes are those of a token.
func (e *Engine) Bytes(id int32) []byte {
	if id < 0 || int(id) >= len(e.tokens) {
		return nil
	}
	return e.tokens[id].Bytes
}

// Ends are the tokens that may end an answer.
func (e *Engine) Ends() []int32 { return e.ends }

// Compile compiles a grammar. The error is grammar.ErrSpec with the engine's reason.
func (e *Engine) Compile(kind grammar.Kind, source string) (grammar.Program, error) {
	code := C.uint32_t(C.MILLRACE_GRAMMAR_LARK)
	switch kind {
	case grammar.JSONSchema:
		code = C.MILLRACE_GRAMMAR_JSON_SCHEMA
	case grammar.Regex:
		code = C.MILLRACE_GRAMMAR_REGEX
	case grammar.Lark:
	default:
		return nil, fmt.Errorf("%w: found kind %q", grammar.ErrSpec, kind)
	}
	p := &program{engine: e}
	var out C.millrace_jinja_bytes
	status := C.millrace_grammar_compile(e.vocabulary, code, (*C.uint8_t)(unsafe.StringData(source)), C.size_t(len(source)), &compileLimits, &p.ptr, &out) //nolint:gocritic // as above
	runtime.KeepAlive(e)
	if message, failed := text(status, out); failed { //nolint:gocritic // as above
		return nil, fmt.Errorf("%w: %s", grammar.ErrSpec, reason(message, kind, source))
	}
	runtime.AddCleanup(p, func(ptr unsafe.Pointer) { C.millrace_grammar_free(ptr) }, p.ptr)
	return p, nil
}

// program is a compiled grammar.
type program struct {
	ptr    unsafe.Pointer
	engine *Engine // whose tokens the matchers use
}

func (p *program) Held() int {
	n := int(C.millrace_grammar_size(p.ptr))
	runtime.KeepAlive(p)
	return n
}

func (p *program) Start() (grammar.Automaton, error) {
	a := &automaton{vocab: len(p.engine.tokens)}
	var out C.millrace_jinja_bytes
	code := C.millrace_grammar_matcher(p.ptr, &a.ptr, &out) //nolint:gocritic // as above
	runtime.KeepAlive(p)
	if err := failure(code, out); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEngine, err)
	}
	return a, nil
}

// automaton is a matcher.
type automaton struct {
	ptr   unsafe.Pointer
	vocab int
}

func (a *automaton) Mask(m grammar.Mask) error {
	var out C.millrace_jinja_bytes
	code := C.millrace_grammar_mask(a.ptr, &callLimits, (*C.uint32_t)(unsafe.SliceData(m)), C.size_t(len(m)), &out) //nolint:gocritic // as above
	return engineFailure(code, out)
}

func (a *automaton) Advance(token int32) (ok, ended bool, err error) {
	if token < 0 || int(token) >= a.vocab {
		return false, false, nil
	}
	var out C.millrace_jinja_bytes
	var taken C.size_t
	var over C.int32_t
	id := C.uint32_t(token)
	code := C.millrace_grammar_advance(a.ptr, &callLimits, &id, 1, &taken, &over, &out) //nolint:gocritic // as above
	return taken == 1, over != 0, engineFailure(code, out)
}

func (a *automaton) Forced(tokens []int32) (int, error) {
	if len(tokens) == 0 {
		return 0, nil
	}
	var out C.millrace_jinja_bytes
	var n C.size_t
	code := C.millrace_grammar_forced(a.ptr, &callLimits, (*C.uint32_t)(unsafe.Pointer(unsafe.SliceData(tokens))), C.size_t(len(tokens)), &n, &out) //nolint:gocritic // as above
	return int(n), engineFailure(code, out)
}

func (a *automaton) Rollback(n int) error {
	var out C.millrace_jinja_bytes
	code := C.millrace_grammar_rollback(a.ptr, &callLimits, C.size_t(n), &out) //nolint:gocritic // as above
	return engineFailure(code, out)
}

func (a *automaton) Close() {
	C.millrace_grammar_matcher_free(a.ptr)
	a.ptr = nil
}

func engineFailure(code C.int32_t, out C.millrace_jinja_bytes) error {
	if err := failure(code, out); err != nil {
		return fmt.Errorf("%w: %w", ErrEngine, err)
	}
	return nil
}

// failure returns the library's message, in one line.
func failure(code C.int32_t, out C.millrace_jinja_bytes) error {
	if message, failed := text(code, out); failed {
		return errors.New(oneLine(message))
	}
	return nil
}

// text returns the library's message as it is.
func text(code C.int32_t, out C.millrace_jinja_bytes) (message string, failed bool) {
	if code == C.MILLRACE_JINJA_OK {
		return "", false
	}
	defer C.millrace_jinja_bytes_free(out)
	if out.len == 0 {
		return "no reason given", true
	}
	return string(unsafe.Slice((*byte)(out.data), int(out.len))), true
}
