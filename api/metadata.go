package api

import (
	"encoding/json"
	"unicode/utf8"
)

// Limits of a client's metadata, as OpenAI's. Lengths are in characters.
const (
	mostMetadata     = 16
	longestMetaKey   = 64
	longestMetaValue = 512
)

// CheckMetadata returns an *Error that names the field if raw is not what metadata may be: null, or an object of up to 16 texts.
func CheckMetadata(field string, raw json.RawMessage) error {
	const escaped = len(`\u0000`)
	const most = mostMetadata * (longestMetaKey + longestMetaValue) * 2 * escaped // a character may be two escaped halves
	if len(raw) > most {
		return Invalid(field, "%s: found %d bytes, expected at most %d fields with keys of at most %d and texts of at most %d characters",
			field,
			len(raw), mostMetadata, longestMetaKey, longestMetaValue)
	}
	var all map[string]any
	if len(raw) > 0 && json.Unmarshal(raw, &all) != nil {
		return Invalid(field, "%s: found no object, expected one with texts", field)
	}
	if len(all) > mostMetadata {
		return Invalid(field, "%s: found %d fields, expected at most %d", field, len(all), mostMetadata)
	}
	for key, value := range all {
		if n := utf8.RuneCountInString(key); n > longestMetaKey {
			return Invalid(field, "%s: found a key of %d characters, expected at most %d", field, n, longestMetaKey)
		}
		text, ok := value.(string)
		if !ok {
			return Invalid(field, "%s: %q: found another type, expected a text", field, key)
		}
		if n := utf8.RuneCountInString(text); n > longestMetaValue {
			return Invalid(field, "%s: %q: found %d characters, expected at most %d", field, key, n, longestMetaValue)
		}
	}
	return nil
}
