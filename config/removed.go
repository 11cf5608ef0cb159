package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// removed says, for each flag that an earlier version had, why it is gone and what to do.
var removed = map[string]string{
	"sim-answer-tokens": deviceKey("answer_tokens"),
	"sim-fault":         deviceKey("fault"),
	"sim-gbps":          deviceKey("gbps"),
	"sim-launch":        deviceKey("op_seconds"),
	"sim-speed":         deviceKey("speed"),
	"sim-tflops":        deviceKey("tflops"),

	"max-hold-steps": "--waiting-served-ratio holds a prompt back for at most 16 steps; leave this setting out",
	"no-overlap":     "detokenizing always overlaps with the next step; leave this setting out",
}

// deviceKey names the key that replaced a flag of the simulated device.
func deviceKey(key string) string {
	return fmt.Sprintf("write the key %q into the JSON file that --device names, see docs/simulation.md", key)
}

// hint ends the error for an unknown setting: what to do instead of a removed flag, or the
// nearest known name. name is the setting as written; flag is its form as a flag.
func hint[V any](name, flag string, known map[string]V) string {
	if advice := removed[flag]; advice != "" {
		return fmt.Sprintf(": removed: %s", advice)
	}
	return suggest(name, known)
}

// FlagError returns the error of parsing a command line. The error for a removed flag says
// what to do instead. Every error is an ErrUsage.
func FlagError(err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		if advice := removed[unknown.GetSpecifiedName()]; advice != "" {
			return Usagef("%w: removed: %s", err, advice)
		}
	}
	return Usagef("%w", err)
}

// flagName is the flag that an environment variable sets.
func flagName(env string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(env, EnvPrefix), "_", "-"))
}
