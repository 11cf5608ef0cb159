package api

import (
	"path"
	"strings"
)

// Find returns the model that a request names; nil if there is none. A model that was pulled as OWNER/NAME or OWNER/NAME:VARIANT is also
// found by a part of its name, if no other model has it, and a name may end in .gguf.
func Find(models []Model, name string) *Model {
	var found *Model
	for i := range models {
		switch m := &models[i]; {
		case m.ID == name:
			return m
		case !shortFor(m.ID, name):
		case found != nil:
			return nil
		default:
			found = m
		}
	}
	return found
}

// shortFor says whether a name is an id without its owner, or its variant, or both.
func shortFor(id, name string) bool {
	name = strings.TrimSuffix(name, ".gguf")
	repository, _, _ := strings.Cut(id, ":")
	return name != "" && (name == id || name == path.Base(id) || name == repository || name == path.Base(repository))
}
