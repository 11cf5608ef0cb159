package sim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrFault reports an invalid fault.
var ErrFault = errors.New("sim: invalid fault")

// fault makes steps fail. Its syntax is that of MILLRACE_SYCL_FAULT of the SYCL backend. The count of
// steps continues when the device is opened again.
type fault struct {
	kind  string // "": none
	first uint64
	every bool // each step from first on
}

// faultTexts are the kinds of faults, with the error of the device. hang has none: it never returns.
var faultTexts = []struct{ kind, text string }{
	{"async", "asynchronous failure"},
	{"submit", "a launch failed"},
	{"resources", "UR_RESULT_ERROR_OUT_OF_RESOURCES"},
	{"lost", "UR_RESULT_ERROR_DEVICE_LOST"},
	{"hang", ""},
}

// parseFault reads "step:N:KIND", or "step:N+:KIND" for every step from N on.
func parseFault(text string) (fault, error) {
	if text == "" {
		return fault{}, nil
	}
	bad := fmt.Errorf("%w: found %q, expected step:N:KIND or step:N+:KIND with N at least 1 and KIND async, submit, resources, lost or hang", ErrFault, text)
	words := strings.Split(text, ":")
	if len(words) != 3 || words[0] != "step" {
		return fault{}, bad
	}
	number, every := strings.CutSuffix(words[1], "+")
	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil || n == 0 {
		return fault{}, bad
	}
	for _, f := range faultTexts {
		if f.kind == words[2] {
			return fault{kind: f.kind, first: n, every: every}, nil
		}
	}
	return fault{}, bad
}

func (f fault) hits(step uint64) bool {
	return f.kind != "" && (step == f.first || f.every && step > f.first)
}

func (f fault) text() string {
	for _, t := range faultTexts {
		if t.kind == f.kind {
			return fmt.Sprintf("%s: a fault of kind %s, injected by \"fault\" in the file of --device", t.text, f.kind)
		}
	}
	return f.kind
}
