package document

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

const (
	componentRef = "#/components/schemas/"
	defsRef      = "#/$defs/"
)

// Schemas returns the JSON schemas of the bodies of each POST path: those of requests as "request" and those of answers as "response". Each
// is complete: its references are inside.
func Schemas() (map[string]map[string]string, error) {
	registry := huma.NewMapRegistry(componentRef, huma.DefaultSchemaNamer)
	all := make(map[string]map[string]string)
	for _, op := range operations {
		if op.request == nil || op.answer == nil {
			continue
		}
		bodies := make(map[string]string)
		for name, t := range map[string]reflect.Type{"request": op.request, "response": op.answer} {
			text, err := schema(registry, t)
			if err != nil {
				return nil, fmt.Errorf("document: schema of %s: %w", op.path, err)
			}
			bodies[name] = text
		}
		all[op.path] = bodies
	}
	return all, nil
}

// schema returns the JSON schema of a type, with those that it refers to as $defs.
func schema(registry huma.Registry, t reflect.Type) (string, error) {
	ref := registry.Schema(t, true, "").Ref
	waiting, defs := []string{strings.TrimPrefix(ref, componentRef)}, make(map[string]json.RawMessage)
	for len(waiting) > 0 {
		name := waiting[0]
		waiting = waiting[1:]
		if defs[name] != nil {
			continue
		}
		text, err := json.Marshal(registry.Map()[name])
		if err != nil {
			return "", err
		}
		for _, rest := range strings.Split(string(text), `"`+componentRef)[1:] {
			other, _, _ := strings.Cut(rest, `"`)
			waiting = append(waiting, other)
		}
		defs[name] = json.RawMessage(strings.ReplaceAll(string(text), componentRef, defsRef))
	}
	text, err := json.Marshal(map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": strings.Replace(ref, componentRef, defsRef, 1), "$defs": defs,
	})
	return string(text), err
}
