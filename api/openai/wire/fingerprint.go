package wire

import (
	"cmp"
	"slices"
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

// fingerprints holds the system_fingerprint of each request of a call, from the pins of its events.
type fingerprints struct {
	prints  []string // by request
	choices int      // of a request
}

func newFingerprints(c *call.Call, unknown string) *fingerprints {
	f := &fingerprints{prints: make([]string, len(c.Requests)), choices: c.N}
	for i := range f.prints {
		f.prints[i] = unknown
	}
	return f
}

func (f *fingerprints) observe(ev api.Event) {
	if ev.Pin == nil {
		return
	}
	if p := ev.Pin.Fingerprint(); p != "" {
		f.prints[ev.Choice/f.choices] = p
	}
}

func (f *fingerprints) choice(choice int) string { return f.prints[choice/f.choices] }

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
