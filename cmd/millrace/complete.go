package main

import (
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/models/hub"
)

// flagValues are the values that a shell completes for flags, by name.
func flagValues() map[string][]string {
	return map[string][]string{
		"admission":     {"predicted", "declared"},
		"backend":       append(device.Backends(), "sim"),
		"dtype":         {"auto", "f16", "bf16"},
		"kv-eviction":   model.EvictionNames(),
		"kv-type":       model.KVTypeNames(),
		"log-format":    {"auto", "console", "json"},
		"log-level":     {"trace", "debug", "info", "warn", "error", "disabled"},
		"metrics-names": {"millrace", "vllm"},
		"roles":         {"gateway", "tokenize", "compute", "prefill", "decode", "detok"},
		"stream-resume": {"auto", "on", "off"},
		"tool-parser":   append([]string{"auto"}, tools.Names()...),
		"weights":       model.WeightNames(),
	}
}

// completeValues lets shells complete the values of flags, and the names of downloaded models.
func completeValues(cmd *cobra.Command) {
	for name, values := range flagValues() {
		if cmd.LocalFlags().Lookup(name) != nil || cmd.PersistentFlags().Lookup(name) != nil {
			cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) //nolint:errcheck // the flag exists
		}
	}
	if cmd.LocalFlags().Lookup("model") != nil {
		cmd.RegisterFlagCompletionFunc("model", downloaded(cobra.ShellCompDirectiveDefault)) //nolint:errcheck // the flag exists
	}
	switch cmd.CommandPath() {
	case "millrace run":
		cmd.ValidArgsFunction = downloaded(cobra.ShellCompDirectiveDefault) // or a path
	case "millrace models remove", "millrace pull":
		cmd.ValidArgsFunction = downloaded(cobra.ShellCompDirectiveNoFileComp)
	}
	for _, sub := range cmd.Commands() {
		completeValues(sub)
	}
}

// downloaded completes the name of a downloaded model, as the one argument of a command or the value of a flag.
func downloaded(others cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		store, err := hub.DefaultStore()
		if err != nil || len(args) > 0 {
			return nil, others
		}
		list, err := store.List()
		if err != nil {
			return nil, others
		}
		names := make([]cobra.Completion, len(list))
		for i, m := range list {
			names[i] = m.Name
		}
		return names, others
	}
}
