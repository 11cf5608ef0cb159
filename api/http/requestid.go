package httpapi

import (
	"strings"

	"github.com/google/uuid"
)

// requestID returns the client's id if it is valid in logs and headers (1 to 128 letters, digits, '-',
// '_' or '.'), else a new one.
func requestID(given string) string {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	if given != "" && len(given) <= 128 && strings.Trim(given, allowed) == "" {
		return given
	}
	return "req-" + uuid.NewString()
}
