package jsonbody

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"

	"github.com/millrace/millrace/api"
)

// Integer is an integer field of a body that Unmarshal decodes. Some clients write it as 12.0.
type Integer int64

// UnmarshalJSON reads a number without a fraction.
func (n *Integer) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	v, ok := ParseInt(raw)
	if !ok {
		return &json.UnmarshalTypeError{Value: kindOf(raw), Type: reflect.TypeFor[Integer]()}
	}
	*n = Integer(v)
	return nil
}

// Unmarshal checks a body and decodes it into a struct, or a map of raw fields. An error is an *api.Error that names the field, what was
// found and what was expected, in words of JSON.
func Unmarshal(body []byte, v any) error {
	if err := Check(body); err != nil {
		return err
	}
	if _, raw := v.(*map[string]json.RawMessage); !raw {
		if err := contentsOf(body).checkLists(); err != nil {
			return err
		}
	}
	err := json.Unmarshal(body, v)
	var syntax *json.SyntaxError
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return api.Invalid("", "the body is not one JSON object: %v", err)
	case firstByte(body) != '{':
		return api.Invalid("", "the body is not one JSON object: found %s", kindOf(bytes.TrimSpace(body)))
	case errors.As(err, &wrong):
		name := strings.ReplaceAll(wrong.Field, ".blocks", "") // a name of Go's alone
		return api.Invalid(name, "%s: found %s, expected %s", name, found(wrong.Value), expectedKind(wrong.Type))
	case err != nil:
		return api.Invalid("", "the body is not one JSON object: %v", err)
	}
	return nil
}

func firstByte(body []byte) byte { return bytes.TrimSpace(body)[0] }

// kindOf names what a JSON value is, as json.UnmarshalTypeError does.
func kindOf(raw []byte) string {
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	}
	return "number " + Snippet(raw)
}

// found returns the value of a json.UnmarshalTypeError in the words of kindOf.
func found(value string) string {
	switch value {
	case "object":
		return "an object"
	case "array":
		return "a list"
	case "string":
		return "a string"
	case "bool":
		return "true or false"
	}
	return value
}

// expectedKind names the JSON of a Go type.
func expectedKind(t reflect.Type) string {
	if t == reflect.TypeFor[Integer]() {
		return "an integer"
	}
	switch t.Kind() { //nolint:exhaustive // the others are no fields of bodies
	case reflect.Struct, reflect.Map, reflect.Pointer:
		return "an object"
	case reflect.Slice:
		return "a list"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "an integer"
	}
	return "another type"
}
