package openai

import (
	"cmp"
	"slices"
	"strings"

	"github.com/millrace/millrace/api"
)

// joinFingerprints returns the fingerprint of a whole answer: the different ones of its requests, joined
// by commas. Workers of different kinds may serve the requests. unknown replaces that of an empty pin.
func joinFingerprints(pins []api.Pin, unknown string) string {
	list := make([]string, len(pins))
	for i, p := range pins {
		list[i] = cmp.Or(p.Fingerprint(), unknown)
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ",")
}
