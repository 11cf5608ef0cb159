package main

import (
	"context"
	"os"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/logging"
)

// app is the state that all commands share. It is complete when a command runs.
type app struct {
	log zerolog.Logger
}

// quietLogs is the annotation of commands whose terminal is for an answer: only warnings are logged, unless --log-level says otherwise.
const quietLogs = "quiet"

// failure marks an error that a command returns.
type failure struct{ err error }

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// newRoot makes the tree of commands. Logs go to stderr.
func newRoot(environ []string, stderr *os.File) *cobra.Command {
	var a app
	var logs logging.Options
	root := &cobra.Command{
		Use:   "millrace",
		Short: "LLM serving as a pipeline of actors, with fused kernels",
		Long: `Millrace serves large language models with an OpenAI-style HTTP API and the same API over NATS.
"millrace serve" serves the demo model on http://127.0.0.1:8080.

Every flag is also an environment variable and a key of the configuration file: --kv-memory is
MILLRACE_KV_MEMORY and "kv-memory:". A flag takes precedence over the environment, the environment over the file.`,
		Version:       version,
		SilenceErrors: true, // main prints them, on one line
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed(helpAll) {
				return pflag.ErrHelp
			}
			if err := config.Bind(cmd, environ); err != nil {
				return err
			}
			if cmd.Annotations[quietLogs] != "" && !cmd.Flags().Changed("log-level") {
				logs.Level = "warn"
			}
			var err error
			a.log, err = logging.New(stderr, logs)
			return err
		},
	}
	root.SetUsageFunc(usage)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return config.FlagError(cmd.Flags(), err) })
	root.PersistentFlags().String(config.FileFlag, "", "YAML file with settings (default: "+config.DefaultFile+" if it exists)")
	logs.Register(root.PersistentFlags())
	root.AddCommand(
		newServe(&a),
		newRun(&a),
		newPull(&a),
		newModels(),
		newChat(),
		newGenerate(&a),
		newBench(&a),
		newEval(&a),
		newPlan(),
		newSimulate(&a),
		newExplain(),
		newLogits(),
		newDoctor(),
		newNodes(&a),
		newRequest(),
		newVerify(),
		newKeys(),
		newMan(),
		newVersion(),
	)
	completeValues(root)
	markFailures(root)
	return root
}

// atOnce runs work that has nothing to end in order, as measurements have not: when the command is ended, nobody waits for it, and
// the process ends with it.
func atOnce(ctx context.Context, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// markFailures wraps what the commands return.
func markFailures(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err := run(cmd, args); err != nil {
				return &failure{err}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		markFailures(sub)
	}
}
