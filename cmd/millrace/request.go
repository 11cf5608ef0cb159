package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/config"
)

type requestOptions struct {
	url     string
	stream  bool
	timeout time.Duration
	clientOptions
}

// clientOptions say who a client of the API is, over NATS.
type clientOptions struct {
	key   string // "" for none
	inbox string
	config.NATSClient
}

func (o *clientOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.key, "api-key", "", "API key, if the server requires one")
	f.StringVar(&o.inbox, "inbox-prefix", "",
		"prefix of the subject of replies, if the NATS user has its own (default: _INBOX, or that of the API key)")
	o.Register(f)
}

// login returns the options of the connection, without the API key.
func (o *clientOptions) login() ([]nats.Option, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	options, err := natsOptions(&o.NATSClient)
	if o.inbox != "" {
		options = append(options, nats.CustomInboxPrefix(o.inbox))
	}
	return options, err
}

func newRequest() *cobra.Command {
	var o requestOptions
	cmd := &cobra.Command{
		Use:   "request SUBJECT JSON",
		Short: "Send a request over NATS and print the replies",
		Long: `Send a request over NATS and print each reply on a line: what "nats request" does, for those who do
not have the nats tool. JSON "-" is read from standard input.

A stream ("stream": true in the request, or --stream) is printed until its last message. An error
reply is printed and makes the exit code 1.`,
		Example: `  millrace request millrace.v1.models '{}'
  millrace request millrace.v1.chat.completions '{"messages":[{"role":"user","content":"Hello"}]}' --stream
  MILLRACE_API_KEY=mr-... millrace request millrace.v1.models '{}' --nats tls://nats:4222 --nats-creds client.creds`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := []byte(args[1])
			if args[1] == "-" {
				var err error
				if body, err = io.ReadAll(cmd.InOrStdin()); err != nil {
					return err
				}
			}
			return request(cmd.Context(), cmd.OutOrStdout(), o, args[0], body)
		},
	}
	cmd.Flags().StringVar(&o.url, "nats", nats.DefaultURL, "URL of the NATS server")
	o.register(cmd.Flags())
	cmd.Flags().BoolVar(&o.stream, "stream", false, "request a stream: adds \"stream\": true to the request")
	cmd.Flags().DurationVar(&o.timeout, "timeout", time.Minute, "longest wait for one reply")
	return cmd
}

func request(ctx context.Context, out io.Writer, o requestOptions, subject string, body []byte) error {
	body, stream, err := streamed(body, o.stream)
	if err != nil {
		return err
	}
	options, err := o.login()
	if err != nil {
		return err
	}
	at := redacted(o.url)
	nc, err := client.ConnectNATS(o.url, o.key, append(options, nats.Name("millrace request"))...)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	defer nc.Close()

	inbox := nc.NewRespInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	m := &nats.Msg{Subject: subject, Reply: inbox, Data: body, Header: nats.Header{}}
	if o.key != "" {
		m.Header.Set(natsapi.HeaderKey, "Bearer "+o.key)
	}
	if err := nc.PublishMsg(m); err != nil {
		return fmt.Errorf("%s: %d bytes: %w", subject, len(body), err)
	}
	var r replies
	for {
		m, err := next(ctx, sub, o.timeout)
		switch {
		case errors.Is(err, nats.ErrNoResponders):
			return fmt.Errorf("no service answers %s at %s", subject, at)
		case errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("no reply from %s within %v", subject, o.timeout)
		case err != nil:
			return err
		}
		if len(m.Data) > 0 {
			if _, err := fmt.Fprintf(out, "%s\n", m.Data); err != nil {
				return err
			}
		}
		if done, err := r.add(m.Header); err != nil || done || !stream {
			return err
		}
	}
}

func next(ctx context.Context, sub *nats.Subscription, timeout time.Duration) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return sub.NextMsgWithContext(ctx)
}

// streamed returns the body to send and whether it requests a stream. If want is set, it adds the
// request for one. It sends a body that is no JSON object unchanged: the server rejects it.
func streamed(body []byte, want bool) ([]byte, bool, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		if want {
			return nil, false, config.Usagef("--stream: the request is no JSON object")
		}
		return body, false, nil
	}
	if !want {
		return body, string(fields["stream"]) == "true", nil
	}
	fields["stream"] = json.RawMessage("true")
	body, err := json.Marshal(fields)
	return body, true, err
}

// replies checks the messages of one answer.
type replies struct{ last uint64 }

// add takes a reply's header: done after the last message, an error for an
// error reply and for a gap.
func (r *replies) add(h nats.Header) (done bool, err error) {
	if text := h.Get(micro.ErrorHeader); text != "" {
		return true, fmt.Errorf("error reply %s: %s", h.Get(micro.ErrorCodeHeader), text)
	}
	if text := h.Get(natsapi.HeaderSeq); text != "" {
		seq, err := strconv.ParseUint(text, 10, 64)
		if err != nil || seq != r.last+1 {
			return true, fmt.Errorf("stream broken: found %s %q, expected %d", natsapi.HeaderSeq, text, r.last+1)
		}
		r.last = seq
	}
	switch end := h.Get(natsapi.HeaderEnd); end {
	case "":
		return false, nil
	case "error":
		return true, errors.New("the stream ended with an error")
	default:
		return true, nil
	}
}
