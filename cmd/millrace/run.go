package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/models/hub"
)

func newRun(a *app) *cobra.Command {
	var s config.Serve
	var system string
	cmd := &cobra.Command{
		Use:   "run [MODEL]",
		Short: "Download a model if it is not there, serve it, and talk to it",
		Long: `Serve a model for this terminal and talk to it, as with "millrace serve" and "millrace chat". MODEL is
OWNER/NAME or OWNER/NAME:VARIANT of the Hugging Face Hub, which "millrace pull" would download, or a folder or a
GGUF file. The default is the demo model. The HTTP API is served too, at the address that is printed, until the
chat ends. Nothing is kept.

` + chatHelp,
		Example: `  millrace run
  millrace run Qwen/Qwen3-0.6B --weights int8
  millrace run Qwen/Qwen3-0.6B-GGUF:Q8_0 --system "Answer in one sentence."`,
		Args:        cobra.MaximumNArgs(1),
		Annotations: map[string]string{quietLogs: "true"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				s.Model = args[0]
			}
			if err := s.Validate(); err != nil {
				return err
			}
			return runModel(cmd, a, &s, system)
		},
	}
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.Register(all) // for the defaults of those without a flag here
	for _, name := range []string{
		"weights", "kv-type", "packed-weights", "backend", "device", "isa", "dtype", "threads", "tensor-parallel", "kv-memory",
		"kv-eviction", "listen", "tool-parser",
	} {
		cmd.Flags().AddFlag(all.Lookup(name))
	}
	cmd.Flags().StringVar(&system, "system", "", "system message")
	return cmd
}

// runModel serves a model until the chat with it ends.
func runModel(cmd *cobra.Command, a *app, s *config.Serve, system string) error {
	if err := pullMissing(cmd.Context(), a, cmd.ErrOrStderr(), s.Model); err != nil {
		return err
	}
	if err := nameModel(s); err != nil {
		return err
	}
	data, err := os.MkdirTemp("", "millrace-run-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(data) //nolint:errcheck // nothing in it is needed
	s.DataDir, s.NATSListen = data, "127.0.0.1:0"
	if !cmd.Flags().Changed("listen") {
		s.Listen = freeAddress(cmd.Context(), s.Listen)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "loading %s\n", s.ServedModelName)
	log := a.log
	if !cmd.Flags().Changed("log-level") {
		log = log.Level(zerolog.InfoLevel).Hook(onlyLoading{})
	}
	return serveAndChat(cmd, s, system, log)
}

// onlyLoading leaves the progress of loading and the warnings of a log.
type onlyLoading struct{}

// Run implements zerolog.Hook.
func (onlyLoading) Run(e *zerolog.Event, level zerolog.Level, message string) {
	if level < zerolog.WarnLevel && message != loadingMessage {
		e.Discard()
	}
}

// pullMissing downloads the model that a text names, unless it is a path or is there.
func pullMissing(ctx context.Context, a *app, progress io.Writer, text string) error {
	if _, err := os.Stat(text); text == "" || err == nil {
		return nil
	}
	n, err := hub.ParseName(text)
	if err != nil {
		return nil //nolint:nilerr // it is a path, and findModel says what is wrong with it
	}
	store, err := hub.DefaultStore()
	if err != nil {
		return err
	}
	if _, err := store.Find(n); err == nil {
		return nil // without a request to the hub
	}
	_, err = download(ctx, a, progress, store, n, "")
	return err
}

// freeAddress returns an address, with a free port if its own is in use.
func freeAddress(ctx context.Context, address string) string {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if errors.Is(err, unix.EADDRINUSE) {
		host, _, _ := net.SplitHostPort(address) //nolint:errcheck // Validate has read it
		return net.JoinHostPort(host, "0")
	}
	if err == nil {
		l.Close()
	}
	return address
}

// serveAndChat serves until the chat ends, and ends the chat if the server fails.
func serveAndChat(cmd *cobra.Command, s *config.Serve, system string, log zerolog.Logger) error {
	ctx, end := context.WithCancel(cmd.Context())
	defer end()
	ready := make(chan string, 1)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serve(ctx, s, log, func(url string) { ready <- url }) })
	var talk error
	select {
	case <-ctx.Done():
	case url := <-ready:
		fmt.Fprintf(cmd.ErrOrStderr(), "%s is served at %s. /help shows the commands.\n", s.ServedModelName, url)
		talk = chatAt(ctx, cmd, url, system)
	}
	end()
	err := group.Wait()
	if errors.Is(talk, context.Canceled) { // the server's error says why, if it has one
		talk = nil
	}
	return errors.Join(err, talk)
}

func chatAt(ctx context.Context, cmd *cobra.Command, url, system string) error {
	c, err := client.NewHTTP(url)
	if err != nil {
		return err
	}
	defer c.Close()
	return converse(ctx, cmd, c, "", system)
}
