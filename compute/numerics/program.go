package numerics

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/millrace/millrace/compute/model"
)

// Program is the canonical text of a program: every field that is not zero, by its name. A
// field that a later version adds changes no text of a program that does not use it. How the
// cache keeps keys and values is not in it: KVAuto is the device's choice. Which slabs have them changes no bits, and what an eviction does is in the ops.
func Program(p *model.Program) string {
	q := *p
	q.KV, q.OneGroup, q.Eviction = model.KVAuto, false, model.Eviction{}
	var b strings.Builder
	write(&b, reflect.ValueOf(q))
	return b.String()
}

func write(b *strings.Builder, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		writeStruct(b, v)
	case reflect.Slice:
		b.WriteByte('[')
		for i := range v.Len() {
			if i > 0 {
				b.WriteByte(' ')
			}
			write(b, v.Index(i))
		}
		b.WriteByte(']')
	case reflect.Float32:
		b.WriteString(strconv.FormatFloat(v.Float(), 'x', -1, 32)) // exact
	case reflect.String:
		b.WriteString(strconv.Quote(v.String()))
	case reflect.Bool:
		b.WriteString(strconv.FormatBool(v.Bool()))
	default: // integers: a test sets every field
		b.WriteString(strconv.FormatInt(v.Int(), 10)) // not a name of it: that may change
	}
}

func writeStruct(b *strings.Builder, v reflect.Value) {
	b.WriteByte('{')
	separator := ""
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsZero() {
			b.WriteString(separator + v.Type().Field(i).Name + ":")
			write(b, f)
			separator = " "
		}
	}
	b.WriteByte('}')
}
