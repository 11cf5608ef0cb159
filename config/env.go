package config

import (
	"slices"
	"strings"
)

// notSettings are read by others: when Millrace is built, by CMake and the
// Makefile (a shell that exports them may also start the program), and by the
// SYCL backend.
var notSettings = []string{"MILLRACE_ONEDNN", "MILLRACE_SYCL_FAULT"}

// readEnv finds the settings of environ. An empty value is no value.
func readEnv(environ []string, known map[string]bool) ([]setting, error) {
	flagOf := map[string]string{}
	for flag := range known {
		flagOf[envName(flag)] = flag
	}

	var settings []setting
	for _, entry := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, EnvPrefix) || slices.Contains(notSettings, name) {
			continue
		}
		flag, ok := flagOf[name]
		if !ok {
			return nil, Usagef("unknown environment variable %s%s", name, suggest(name, flagOf))
		}
		if value != "" {
			settings = append(settings, setting{flag: flag, value: value, origin: name})
		}
	}
	return settings, nil
}
