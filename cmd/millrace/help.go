package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/config"
)

// usage prints how to use a command: its subcommands, and its flags by topic.
func usage(cmd *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:\n")
	if cmd.Runnable() {
		fmt.Fprintf(&b, "  %s\n", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "  %s COMMAND [flags]\n\nCommands:\n", cmd.CommandPath())
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			fmt.Fprintf(&b, "  %-*s  %s\n", sub.NamePadding(), sub.Name(), sub.Short)
		}
	}
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	flags := allFlags(cmd)
	if brief := briefFlags(cmd); brief != nil {
		fmt.Fprintf(&b, "\nFlags:\n%s\n%s --%s shows the other %d flags, by topic.\n", brief.FlagUsages(), cmd.CommandPath(), helpAll,
			visible(flags)-visible(brief))
		flags = pflag.NewFlagSet("", pflag.ContinueOnError)
	}
	for _, g := range config.ByTopic(flags) {
		title := g.Topic
		if title == "" {
			title = "Flags"
		}
		fmt.Fprintf(&b, "\n%s:\n%s", title, g.Flags.FlagUsages())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n%s COMMAND --help describes a command.\n", cmd.CommandPath())
	}
	_, err := fmt.Fprint(cmd.OutOrStderr(), b.String())
	return err
}

// helpAll is the flag that shows all flags of a command whose --help shows the most used ones.
const helpAll = config.HelpAllFlag

// mostUsed is the annotation of a command that names the flags of its --help, separated by commas.
const mostUsed = "most used flags"

// briefHelp makes --help of a command show these flags only.
func briefHelp(cmd *cobra.Command, flags ...string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[mostUsed] = strings.Join(flags, ",")
	cmd.Flags().Bool(helpAll, false, "help with all flags")
}

// briefFlags returns the flags that the help of a command shows; nil: all.
func briefFlags(cmd *cobra.Command) *pflag.FlagSet {
	names, ok := cmd.Annotations[mostUsed]
	if !ok || cmd.Flags().Changed(helpAll) {
		return nil
	}
	brief := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	brief.SortFlags = false
	for name := range strings.SplitSeq(names+",help,"+helpAll, ",") {
		brief.AddFlag(cmd.Flags().Lookup(name))
	}
	return brief
}

// visible counts the flags that help shows.
func visible(flags *pflag.FlagSet) (n int) {
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			n++
		}
	})
	return n
}

// allFlags returns the flags of a command, its own and those of every command.
func allFlags(cmd *cobra.Command) *pflag.FlagSet {
	all := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	all.AddFlagSet(cmd.LocalFlags())
	all.AddFlagSet(cmd.InheritedFlags())
	return all
}
