package call

import (
	"fmt"
	"strings"
)

// Ignore returns the entry of Call.Ignored for a part of a request: its path, and its kind as the client wrote it.
func Ignore(path, kind string) string {
	const longest = 64
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("_-.:", c)
	}
	if kind == "" || len(kind) > longest || strings.TrimFunc(kind, plain) != "" { // it becomes part of a header
		return path
	}
	return path + " (" + kind + ")"
}

// IgnoredText returns the parts of the request that have no effect, as one line of ASCII for a header; "" if there are none.
func (c *Call) IgnoredText() string {
	const most = 16
	if n := len(c.Ignored); n > most {
		return fmt.Sprintf("%s and %d more", strings.Join(c.Ignored[:most], ", "), n-most)
	}
	return strings.Join(c.Ignored, ", ")
}
