package config

import (
	"slices"

	"github.com/spf13/pflag"
)

// Topic is a group of flags that help and docs/settings.md show together.
type Topic struct {
	Name  string
	Flags []string // in the order to show them
}

// Topics returns the topics of the flags that several commands, or users and operators, share.
// A flag of one command alone has no topic.
func Topics() []Topic {
	return []Topic{
		{"Model", []string{"model", "served-model-name", "tool-parser", "parse-special", "weights", "kv-type", "packed-weights"}},
		{"Device", []string{"backend", "device", "isa", "dtype", "threads", "tensor-parallel"}},
		{"Memory", []string{"kv-memory", "kv-shm", "kv-disk", "kv-disk-size", "kv-spill", "kv-spill-size", "kv-eviction", "admission"}},
		{"Scheduling", []string{
			"max-batch-tokens", "max-batch-size", "prefill-chunk", "draft-rows", "draft-layers", "waiting-served-ratio",
			"max-waiting", "max-queue-wait", "step-timeout", "tokenizers", "detokenizers",
		}},
		{"Network", []string{"listen", "body-limit", "ping-interval", "nats", "nats-listen", "data-dir"}},
		{"Streams and shutdown", []string{"stream-resume", "stream-keep", "batch-store", "response-store", "drain-delay", "grace"}},
		{"Cluster", []string{"roles", "heartbeat", "node-timeout", "failover-timeout"}},
		{"Security", []string{
			"api-keys", "tls-cert", "tls-key", "tls-client-ca", "cors-origin", "nats-auth-file", "nats-creds", "nats-nkey",
			"nats-clients", "nats-tls-ca", "nats-tls-cert", "nats-tls-key",
		}},
		{"Observability", []string{"log-level", "log-format", "metrics-names", "otlp-endpoint", "trace-ratio"}},
		{"General", []string{"config", "json", "help", HelpAllFlag}},
	}
}

// Group is the flags of a command that belong to one topic.
type Group struct {
	Topic string // "": the flags without a topic
	Flags *pflag.FlagSet
}

// ByTopic groups flags: those without a topic first, in the order of their names, then each
// topic that has some. Hidden flags are left out.
func ByTopic(flags *pflag.FlagSet) []Group {
	topics := Topics()
	rest := newGroup("")
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && !slices.ContainsFunc(topics, func(t Topic) bool { return slices.Contains(t.Flags, f.Name) }) {
			rest.Flags.AddFlag(f)
		}
	})
	groups := []Group{rest}
	for _, t := range topics {
		g := newGroup(t.Name)
		for _, name := range t.Flags {
			if f := flags.Lookup(name); f != nil && !f.Hidden {
				g.Flags.AddFlag(f)
			}
		}
		groups = append(groups, g)
	}
	return slices.DeleteFunc(groups, func(g Group) bool { return !g.Flags.HasFlags() })
}

func newGroup(topic string) Group {
	g := Group{Topic: topic, Flags: pflag.NewFlagSet(topic, pflag.ContinueOnError)}
	g.Flags.SortFlags = false
	return g
}
