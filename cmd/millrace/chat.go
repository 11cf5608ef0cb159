package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/config"
)

type chatOptions struct {
	serverOptions
	model, system string
}

func newChat() *cobra.Command {
	var o chatOptions
	cmd := &cobra.Command{
		Use:   "chat",
		Short: "Talk to a served model",
		Long: `Talk to the model of a server, which keeps nothing: the conversation is in this process. Answers are printed as they
are made, on a terminal with their Markdown shown. A server that is starting is waited for. Where standard input is no
terminal, each of its lines is a message.

Ctrl-C stops an answer. At the prompt, a second Ctrl-C ends the program. A message of several lines is pasted, or each
line but the last ends in \, or it begins and ends with """.

` + chatHelp,
		Example: `  millrace chat
  millrace chat --url http://127.0.0.1:8080 --system "Answer in one sentence."
  echo "What is the capital of France?" | millrace chat --url nats://127.0.0.1:4222`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.await(cmd.Context(), cmd.ErrOrStderr(), patience)
			if err != nil {
				return err
			}
			defer c.Close()
			return converse(cmd.Context(), cmd, c, o.model, o.system)
		},
	}
	f := cmd.Flags()
	o.register(f)
	f.StringVar(&o.model, "model", "", "model, if the server has several")
	f.StringVar(&o.system, "system", "", "system message")
	return cmd
}

const chatHelp = `A line that begins with / is a command. These are:
  /system TEXT     set the system message, and begin a new conversation; without TEXT, remove it
  /set NAME VALUE  set temperature, top_p, top_k, min_p, max_tokens or seed; without VALUE, use the server's; /set shows all
  /save FILE       write the conversation and its settings to a file
  /load FILE       continue the conversation of a file
  /clear           begin a new conversation
  /retry           answer the last message again
  /help            show this
  /bye             end, as Ctrl-D does`

// converse serves the lines of standard input. From here on, Ctrl-C stops an answer and not the program.
func converse(ctx context.Context, cmd *cobra.Command, c client.Client, model, system string) error {
	signal.Reset(os.Interrupt)
	v := newConversation(c, model, system, cmd.OutOrStdout())
	v.styled = isTerminal(cmd.OutOrStdout()) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return v.run(ctx, newReader(cmd.InOrStdin(), cmd.OutOrStdout()))
}

// defaultURL is the address of a server with the default settings.
const defaultURL = "http://127.0.0.1:8080"

// serverOptions say where a server is, and who its client is.
type serverOptions struct {
	url string
	clientOptions
}

func (o *serverOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.url, "url", defaultURL, "address of the server, or of its NATS server (nats://...)")
	o.clientOptions.register(f)
}

// dial returns a client of the server over HTTP, or over NATS (nats://, tls://).
func (o *serverOptions) dial() (client.Client, error) {
	if strings.HasPrefix(o.url, "nats://") || strings.HasPrefix(o.url, "tls://") {
		return o.dialNATS()
	}
	if o.clientOptions != (clientOptions{key: o.key}) {
		return nil, config.Usagef("found settings of a NATS client with --url %s, expected nats:// or tls://", redacted(o.url))
	}
	var options []client.HTTPOption
	if o.key != "" {
		options = append(options, client.WithAPIKey(o.key))
	}
	return client.NewHTTP(o.url, options...)
}

func (o *serverOptions) dialNATS() (client.Client, error) {
	login, err := o.login()
	if err != nil {
		return nil, err
	}
	options := []client.NATSOption{client.WithNATSOptions(login...)}
	if o.key != "" {
		options = append(options, client.WithNATSAPIKey(o.key))
	}
	return client.DialNATS(o.url, options...)
}

const (
	// patience is the longest wait for a server that does not answer: one that was started at the same moment answers sooner.
	patience = 15 * time.Second
	// loadPatience is the longest wait for the model of a server that answers.
	loadPatience = 10 * time.Minute
	// awaitPoll is the interval of the requests to a server that is starting.
	awaitPoll = 200 * time.Millisecond
)

// await returns a client of the server once it serves a model. It waits for a server that does not listen yet, at most for the patience,
// and for one that loads its model.
func (o *serverOptions) await(ctx context.Context, out io.Writer, patience time.Duration) (client.Client, error) {
	begin, said := time.Now(), ""
	for {
		c, err := o.dial()
		var list []client.Model
		if err == nil {
			if list, err = c.Models(ctx); err == nil && len(list) > 0 {
				return c, nil
			}
			c.Close()
		}
		what := "waiting for the server"
		switch waited := time.Since(begin); {
		case err == nil || loading(err):
			what = "waiting for the server's model"
			if waited > loadPatience {
				return nil, fmt.Errorf("found no model at %s after %s: %w", redacted(o.url), waited.Round(time.Second), err)
			}
		case !absent(err):
			return nil, err
		case waited > patience:
			return nil, fmt.Errorf("found no server at %s (%w), expected one: \"millrace serve\" starts it, and --url names another",
				redacted(o.url), err)
		}
		if said != what {
			said = what
			fmt.Fprintf(out, "%s at %s\n", what, redacted(o.url))
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(awaitPoll):
		}
	}
}

// noResponders is the code of a NATS server to which no gateway is connected.
const noResponders = "no_responders"

// loading says whether a server answered that does not serve yet.
func loading(err error) bool {
	refusal, ok := errors.AsType[*client.Error](err)
	return ok && refusal.Status == http.StatusServiceUnavailable && refusal.Code != noResponders
}

// absent says whether nobody listens yet.
func absent(err error) bool {
	if refusal, ok := errors.AsType[*client.Error](err); ok {
		return refusal.Code == noResponders
	}
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, nats.ErrNoServers)
}
