package weights

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// maxPickleSteps bounds the opcodes of a pickle, and so what it makes us allocate: a tensor takes about 35.
const maxPickleSteps = 1 << 19

// pickle reads a pickle that makes a state dict, as torch.save writes it, and nothing else. It has the opcodes and the globals of
// tensors: there are no lists, no classes and no calls beyond those of reduce. Source: CPython's Lib/pickletools.py.
type pickle struct {
	data  []byte
	at    int // of the next byte
	op    int // of the opcode that is run
	steps int
	stack []any // none, bool, int64, string, tuple, *dict, global, *storage, *view
	marks []int // lengths of the stack
	memo  []any
	err   error
}

// Values of a pickle that Go has no type for.
type (
	none   struct{}
	tuple  []any
	global string // "collections.OrderedDict"

	// dict is a dict or an OrderedDict. A value that is no tensor is nil.
	dict struct {
		views map[string]*view
		other string // kind of the first value that is no tensor, with its key; "": all are
	}

	// storage is the memory that views share.
	storage struct {
		kind     string // "F32"
		key      string // of its entry
		elements int64
	}

	// view is a tensor.
	view struct {
		storage       *storage
		offset        int64 // in elements
		shape, stride []int64
	}
)

const (
	orderedDict      = "collections.OrderedDict"
	rebuildTensor    = "torch._utils._rebuild_tensor_v2"
	rebuildParameter = "torch._utils._rebuild_parameter"
)

// storageTypes are the storages' classes, with the names of safetensors for the types of their elements.
var storageTypes = map[global]string{
	"torch.FloatStorage": "F32", "torch.HalfStorage": "F16", "torch.BFloat16Storage": "BF16", "torch.DoubleStorage": "F64",
	"torch.LongStorage": "I64", "torch.IntStorage": "I32", "torch.ShortStorage": "I16", "torch.CharStorage": "I8",
	"torch.ByteStorage": "U8", "torch.BoolStorage": "BOOL", "torch.ComplexFloatStorage": "C64",
}

// globals are the values that a global of a pickle can be. Each is one value, so that a pickle of globals takes no memory for them.
var globals = func() map[string]any {
	all := map[string]any{}
	for _, name := range []global{orderedDict, rebuildTensor, rebuildParameter} {
		all[string(name)] = name
	}
	for name := range storageTypes {
		all[string(name)] = name
	}
	return all
}()

// readPickle returns the tensors of a state dict.
func readPickle(data []byte) (map[string]*view, error) {
	p := &pickle{data: data}
	for p.err == nil {
		if p.steps++; p.steps > maxPickleSteps {
			return nil, fault(pickleEntry, fmt.Sprintf("%d at most", maxPickleSteps), "more opcodes")
		}
		p.op = p.at
		op := p.byte()
		if p.err == nil && op == opStop {
			return p.result()
		}
		p.step(op)
	}
	return nil, p.err
}

// fail keeps the first fault. What was found is followed by the offset of the opcode.
func (p *pickle) fail(expected, found string, args ...any) {
	if p.err == nil {
		p.err = fault(pickleEntry, expected, "%s at byte %d", fmt.Sprintf(found, args...), p.op)
	}
}

// result is the value that the pickle leaves.
func (p *pickle) result() (map[string]*view, error) {
	top, ok := p.pop().(*dict)
	switch {
	case p.err != nil:
	case !ok || len(p.stack) != 0 || len(p.marks) != 0:
		p.fail("one dict of tensors", "another value")
	case top.other != "":
		p.fail("tensors only", "%s", top.other)
	case p.at != len(p.data):
		p.fail("none", "%d bytes after the end", len(p.data)-p.at)
	}
	if p.err != nil {
		return nil, p.err
	}
	return top.views, nil
}

func (p *pickle) bytes(n uint64) []byte {
	b, ok := slice(p.data, uint64(p.at), n)
	if !ok {
		p.fail(fmt.Sprintf("%d more bytes", n), "the end of the pickle")
		return nil
	}
	p.at += len(b)
	return b
}

func (p *pickle) byte() byte {
	if b := p.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

// number reads an unsigned number of up to 8 bytes.
func (p *pickle) number(n uint64) uint64 {
	var b [8]byte
	copy(b[:], p.bytes(n))
	return binary.LittleEndian.Uint64(b[:])
}

func (p *pickle) line() []byte {
	n := bytes.IndexByte(p.data[p.at:], '\n')
	if n < 0 {
		p.fail("a line", "the end of the pickle")
		return nil
	}
	return p.bytes(uint64(n) + 1)[:n]
}

func (p *pickle) push(v any) { p.stack = append(p.stack, v) }

// pop takes the topmost value that was pushed after the last mark.
func (p *pickle) pop() any {
	low := 0
	if len(p.marks) > 0 {
		low = p.marks[len(p.marks)-1]
	}
	if len(p.stack) == low {
		p.fail("a value", "an empty stack")
		return nil
	}
	v := p.stack[len(p.stack)-1]
	p.stack = p.stack[:len(p.stack)-1]
	return v
}

// popMark takes the values after the last mark. They are valid until the next push.
func (p *pickle) popMark() []any {
	if len(p.marks) == 0 {
		p.fail("a mark", "none")
		return nil
	}
	at := p.marks[len(p.marks)-1]
	p.marks = p.marks[:len(p.marks)-1]
	values := p.stack[at:]
	p.stack = p.stack[:at]
	return values
}

// step runs an opcode.
func (p *pickle) step(op byte) {
	switch op {
	case opProto:
		if v := p.byte(); v < 2 || v > 5 {
			p.fail("2 to 5", "protocol %d", v)
		}
	case opFrame:
		if n := p.number(8); n > uint64(len(p.data)-p.at) {
			p.fail(fmt.Sprintf("%d at most, the rest of the pickle", len(p.data)-p.at), "a frame of %d bytes", n)
		}
	case opMark:
		p.marks = append(p.marks, len(p.stack))
	case opNone:
		p.push(none{})
	case opTrue, opFalse:
		p.push(op == opTrue)
	case opInt1:
		p.push(int64(p.number(1)))
	case opInt2:
		p.push(int64(p.number(2)))
	case opInt4:
		p.push(int64(int32(p.number(4))))
	case opLong1:
		p.long()
	case opText1:
		p.push(string(p.bytes(p.number(1))))
	case opText4:
		p.push(string(p.bytes(p.number(4))))
	case opText8:
		p.push(string(p.bytes(p.number(8))))
	case opEmptyDict:
		p.push(&dict{})
	case opEmptyTuple:
		p.push(tuple{})
	case opTuple:
		p.push(tuple(slices.Clone(p.popMark())))
	case opTuple1, opTuple2, opTuple3:
		t := make(tuple, op-opTuple1+1)
		for i := range t {
			t[len(t)-1-i] = p.pop()
		}
		p.push(t)
	case opPut1:
		p.put(p.number(1))
	case opPut4:
		p.put(p.number(4))
	case opMemoize:
		p.put(uint64(len(p.memo)))
	case opGet1:
		p.get(p.number(1))
	case opGet4:
		p.get(p.number(4))
	case opGlobal:
		module := p.line()
		p.global(string(module), string(p.line()))
	case opStackGlobal:
		name, isText := p.pop().(string)
		module, isToo := p.pop().(string)
		if !isText || !isToo {
			p.fail("two texts", "a global of other values")
		}
		p.global(module, name)
	case opPersistent:
		p.persistent(p.pop())
	case opReduce:
		args, _ := p.pop().(tuple)
		p.reduce(p.pop(), args)
	case opBuild: // the state of an OrderedDict is its _metadata, which is not needed
		_, isDict := p.pop().(*dict)
		target := p.pop()
		if _, ok := target.(*dict); !ok || !isDict {
			p.fail("those of an OrderedDict", "attributes of %s", valueKind(target))
		}
		p.push(target)
	case opSetItem:
		value := p.pop()
		p.setItems([]any{p.pop(), value})
	case opSetItems:
		p.setItems(p.popMark())
	default:
		p.fail("those of a state dict of tensors", "opcode %s", opName(op))
	}
}

// long reads an integer of up to 8 bytes.
func (p *pickle) long() {
	n := p.number(1)
	if n > 8 {
		p.fail("8 at most", "an integer of %d bytes", n)
		return
	}
	v := int64(p.number(n))
	if n > 0 {
		unused := 64 - 8*n
		v = v << unused >> unused
	}
	p.push(v)
}

// put keeps the topmost value. Picklers number their values in order.
func (p *pickle) put(i uint64) {
	v := p.pop()
	p.push(v)
	switch n := uint64(len(p.memo)); {
	case i == n:
		p.memo = append(p.memo, v)
	case i < n:
		p.memo[i] = v
	default:
		p.fail(fmt.Sprintf("%d at most, the values so far", n), "value number %d", i)
	}
}

func (p *pickle) get(i uint64) {
	if i >= uint64(len(p.memo)) {
		p.fail(fmt.Sprintf("one below %d", len(p.memo)), "value number %d", i)
		return
	}
	p.push(p.memo[i])
}

// global pushes one of the globals that tensors have. None of them runs any code.
func (p *pickle) global(module, name string) {
	known, ok := globals[module+"."+name]
	if !ok {
		p.fail("those of a state dict of tensors: "+orderedDict+", "+rebuildTensor+", "+rebuildParameter+" and torch's storages",
			"global %.80s.%.80s", module, name)
	}
	p.push(known)
}

// persistent makes a storage of ("storage", class, key, location, elements).
func (p *pickle) persistent(id any) {
	t, _ := id.(tuple)
	if len(t) == 5 && t[0] == "storage" {
		class, isGlobal := t[1].(global)
		key, isText := t[2].(string)
		n, isInt := t[4].(int64)
		if kind := storageTypes[class]; isGlobal && kind != "" && isText && isInt && n >= 0 {
			p.push(&storage{kind, key, n})
			return
		}
	}
	p.fail(`("storage", class, key, location, elements)`, "another persistent id")
}

// reduce does what a call of one of the globals does.
func (p *pickle) reduce(callee any, args tuple) {
	name, _ := callee.(global)
	switch {
	case p.err != nil:
	case name == orderedDict && len(args) == 0:
		p.push(&dict{})
	case name == rebuildTensor && (len(args) == 6 || len(args) == 7): // with metadata
		p.view(args)
	case name == rebuildParameter && len(args) == 3:
		v, ok := args[0].(*view)
		if !ok {
			p.fail("a tensor", "%s as a parameter", valueKind(args[0]))
		}
		p.push(v)
	case name == "":
		p.fail("one of a global", "a call of %s", valueKind(callee))
	default:
		p.fail("those of a state dict of tensors", "a call of %s with %d arguments", name, len(args))
	}
}

// view makes a tensor of (storage, offset, shape, strides, requires_grad, hooks).
func (p *pickle) view(args tuple) {
	s, isStorage := args[0].(*storage)
	offset, isInt := args[1].(int64)
	shape, ok := integers(args[2])
	stride, okToo := integers(args[3])
	if !isStorage || !isInt || !ok || !okToo || len(shape) != len(stride) {
		p.fail("a storage, an offset, a shape and as many strides", "a tensor of other values")
	}
	p.push(&view{s, offset, shape, stride})
}

func integers(v any) ([]int64, bool) {
	t, ok := v.(tuple)
	list := make([]int64, len(t))
	for i := range t {
		n, isInt := t[i].(int64)
		list[i], ok = n, ok && isInt
	}
	return list, ok
}

// setItems adds keys and values in turn to the dict below them.
func (p *pickle) setItems(items []any) {
	target := p.pop()
	d, ok := target.(*dict)
	if !ok || len(items)%2 != 0 {
		p.fail("keys and values of a dict", "%d of %s", len(items), valueKind(target))
		return
	}
	if d.views == nil && len(items) > 0 {
		d.views = map[string]*view{}
	}
	for i := 0; i < len(items); i += 2 {
		key, ok := items[i].(string)
		if !ok {
			p.fail("a text", "%s as a key", valueKind(items[i]))
			return
		}
		if _, twice := d.views[key]; twice {
			p.fail("each key once", "the key %.80q twice", key)
			return
		}
		v, ok := items[i+1].(*view)
		if !ok && d.other == "" {
			d.other = fmt.Sprintf("%s for %.80q", valueKind(items[i+1]), key)
		}
		d.views[key] = v
	}
	p.push(d)
}

// valueKind names a value's kind, for messages.
func valueKind(v any) string {
	switch v := v.(type) {
	case nil:
		return "nothing"
	case none:
		return "None"
	case bool:
		return "a boolean"
	case int64:
		return "an integer"
	case string:
		return "a text"
	case tuple:
		return "a tuple"
	case *dict:
		return "a dict"
	case *storage:
		return "a storage"
	case *view:
		return "a tensor"
	case global:
		return string(v)
	}
	return "another value"
}

// Opcodes that are read.
const (
	opMark        = '('
	opEmptyTuple  = ')'
	opStop        = '.'
	opInt4        = 'J'
	opInt1        = 'K'
	opInt2        = 'M'
	opNone        = 'N'
	opPersistent  = 'Q'
	opReduce      = 'R'
	opText4       = 'X'
	opBuild       = 'b'
	opGlobal      = 'c'
	opGet1        = 'h'
	opGet4        = 'j'
	opPut1        = 'q'
	opPut4        = 'r'
	opSetItem     = 's'
	opTuple       = 't'
	opSetItems    = 'u'
	opEmptyDict   = '}'
	opProto       = 0x80
	opTuple1      = 0x85
	opTuple2      = 0x86
	opTuple3      = 0x87
	opTrue        = 0x88
	opFalse       = 0x89
	opLong1       = 0x8a
	opText1       = 0x8c
	opText8       = 0x8d
	opStackGlobal = 0x93
	opMemoize     = 0x94
	opFrame       = 0x95
)

// otherOps are the opcodes that are not read, in the order of their codes, for messages.
const otherOps = `0 POP 1 POP_MARK 2 DUP B BINBYTES C SHORT_BINBYTES F FLOAT G BINFLOAT I INT L LONG P PERSID S STRING T BINSTRING ` +
	`U SHORT_BINSTRING V UNICODE ] EMPTY_LIST a APPEND d DICT e APPENDS g GET i INST l LIST o OBJ p PUT ` +
	"\x81 NEWOBJ \x82 EXT1 \x83 EXT2 \x84 EXT4 \x8b LONG4 \x8e BINBYTES8 \x8f EMPTY_SET \x90 ADDITEMS \x91 FROZENSET \x92 NEWOBJ_EX " +
	"\x96 BYTEARRAY8 \x97 NEXT_BUFFER \x98 READONLY_BUFFER"

// opName is the name of an opcode that is not read.
func opName(op byte) string {
	list := strings.Split(otherOps, " ")
	if i := slices.Index(list, string([]byte{op})); i >= 0 && i%2 == 0 {
		return list[i+1]
	}
	return fmt.Sprintf("%#02x", op)
}
