package llguidance

import (
	"strings"
	"unicode/utf8"
)

// oneLine joins the lines of a message, and cuts it after maxMessage bytes.
func oneLine(message string) string {
	message = strings.Join(strings.Fields(strings.ToValidUTF8(message, "\uFFFD")), " ")
	if len(message) <= maxMessage {
		return message
	}
	cut := maxMessage
	for !utf8.RuneStart(message[cut]) {
		cut--
	}
	return message[:cut] + "..."
}
