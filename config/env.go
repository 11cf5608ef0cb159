package config

import (
	"regexp"
	"slices"
	"strings"
)

// notSettings are read by others: when Millrace is built, by CMake and the
// Makefile (a shell that exports them may also start the program), by the
// SYCL and CUDA backends, and by the NATS configuration of deploy/nats.
var notSettings = []string{
	"MILLRACE_ONEDNN", "MILLRACE_SYCL_FAULT", "MILLRACE_CUDA_FAULT",
	"MILLRACE_NATS_GATEWAY", "MILLRACE_NATS_FRONT", "MILLRACE_NATS_TOKENIZE", "MILLRACE_NATS_COMPUTE", "MILLRACE_NATS_DETOK",
	"MILLRACE_NATS_NODE", "MILLRACE_NATS_CLIENT",
}

// emulatorPrefix begins the variables of the emulated CUDA driver, which a test may have loaded.
const emulatorPrefix = "MILLRACE_CUDA_EMULATOR_"

// serviceLink is how the variables end that Kubernetes sets in every pod for a service:
// https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables.
var serviceLink = regexp.MustCompile(`^_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?)$`)

// services finds the Kubernetes services named millrace or millrace-NAME, as beginnings of their
// variables: where both MILLRACE_SERVICE_HOST and _PORT are, there is one. A lone variable
// of such a name is a typing error as before.
func services(environ []string) []string {
	const host, port = "_SERVICE_HOST", "_SERVICE_PORT"
	has := map[string]bool{}
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		has[name] = true
	}
	var found []string
	for name := range has {
		if service, ok := strings.CutSuffix(name, host); ok && has[service+port] {
			found = append(found, service)
		}
	}
	return found
}

// linked says whether a variable is of one of the services.
func linked(name string, services []string) bool {
	return slices.ContainsFunc(services, func(service string) bool {
		end, ok := strings.CutPrefix(name, service)
		return ok && serviceLink.MatchString(end)
	})
}

// readEnv finds the settings of environ. An empty value is no value.
func readEnv(environ []string, known map[string]bool) ([]setting, error) {
	flagOf := map[string]string{}
	for flag := range known {
		flagOf[envName(flag)] = flag
	}

	var settings []setting
	services := services(environ)
	for _, entry := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, EnvPrefix) || slices.Contains(notSettings, name) || strings.HasPrefix(name, emulatorPrefix) ||
			linked(name, services) {
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
