package llguidance

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/compute/grammar"
)

var (
	listing = regexp.MustCompile(`(?m)^\s*\d+ \| `)
	place   = regexp.MustCompile(`^(?:at )?(\d+)\((\d+)\): `)
	pattern = regexp.MustCompile(`^invalid regex .* \(in regex\): .* error: `)
)

// reason returns the engine's message about a grammar without what only the engine's authors can use: the source that it repeats, the
// names of options that nobody here can set, and a schema's error inside of the error of its rule.
func reason(message string, kind grammar.Kind, source string) string {
	if at := listing.FindStringIndex(message); at != nil && kind != grammar.JSONSchema {
		message = message[:at[0]]
	}
	message, _, _ = strings.Cut(message, "\n  while processing ")
	message = oneLine(message)
	if kind == grammar.JSONSchema {
		return schemaReason(message)
	}
	where := ""
	if found := place.FindStringSubmatch(message); found != nil {
		message = message[len(found[0]):]
		line, _ := strconv.Atoi(found[1])
		where = note(source, line)
		if where == "" && kind == grammar.Lark {
			where = "line " + found[1] + ", column " + found[2]
		}
	}
	message = pattern.ReplaceAllString(message, "regular expression: ")
	if inner, ok := strings.CutPrefix(message, "failed to compile JSON schema: "); ok {
		message = schemaReason(inner)
	}
	if where != "" {
		message = where + ": " + message
	}
	return message
}

// note is the comment at the end of a line of a grammar, which says where its schema came from. "" for none.
func note(source string, line int) string {
	for text := range strings.SplitSeq(source, "\n") {
		if line--; line == 0 {
			_, comment, _ := strings.Cut(text, grammar.Note)
			return comment
		}
	}
	return ""
}

func schemaReason(message string) string {
	switch {
	case strings.HasPrefix(message, "oneOf constraints"):
		return "found oneOf with alternatives that one value may match together, which cannot be enforced; anyOf can"
	case strings.HasPrefix(message, "Unimplemented keys: "):
		return "found keywords that cannot be enforced: " + strings.TrimPrefix(message, "Unimplemented keys: ")
	case strings.HasPrefix(message, "Unsatisfiable schema: "):
		return "no value is possible: " + strings.ReplaceAll(message, "Unsatisfiable schema: ", "")
	}
	return strings.TrimPrefix(message, "Invalid schema: ")
}

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
