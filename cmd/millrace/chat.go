package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

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
are made. Where standard input is no terminal, each of its lines is a message.

` + chatHelp,
		Example: `  millrace chat
  millrace chat --url http://127.0.0.1:8080 --system "Answer in one sentence."
  echo "What is the capital of France?" | millrace chat --url nats://127.0.0.1:4222`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.dial()
			if err != nil {
				return err
			}
			defer c.Close()
			read := lineReader(cmd.InOrStdin(), cmd.OutOrStdout())
			return newConversation(c, &o, cmd.OutOrStdout()).run(cmd.Context(), read)
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
  /set NAME VALUE  set temperature, top_p, top_k, min_p, max_tokens or seed; /set shows what is set
  /clear           begin a new conversation
  /retry           answer the last message again
  /help            show this
  /bye             end, as Ctrl-D does`

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

// lineReader reads lines: with editing and history on a terminal. The error at the end is io.EOF.
func lineReader(in io.Reader, out io.Writer) (read func() (string, error)) {
	f, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		lines := bufio.NewScanner(in)
		const longest = 4 << 20
		lines.Buffer(nil, longest)
		return func() (string, error) {
			if lines.Scan() {
				return lines.Text(), nil
			}
			if err := lines.Err(); err != nil {
				return "", fmt.Errorf("standard input: %w", err)
			}
			return "", io.EOF
		}
	}
	terminal := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{f, out}, "> ")
	return func() (string, error) {
		before, err := term.MakeRaw(int(f.Fd())) // not while an answer is printed, so that Ctrl-C is a signal
		if err != nil {
			return "", err
		}
		defer term.Restore(int(f.Fd()), before) //nolint:errcheck // the terminal is gone
		return terminal.ReadLine()
	}
}

// conversation is a conversation with a model, and its settings.
type conversation struct {
	client client.Client
	out    io.Writer
	system string
	r      client.ChatRequest // with all messages
}

func newConversation(c client.Client, o *chatOptions, out io.Writer) *conversation {
	v := &conversation{client: c, out: out, system: o.system, r: client.ChatRequest{Model: o.model}}
	v.clear()
	return v
}

// clear begins a new conversation.
func (v *conversation) clear() {
	v.r.Messages = nil
	if v.system != "" {
		v.r.Messages = []client.Message{{Role: "system", Content: v.system}}
	}
}

// run serves the lines of the user. An error of the server does not end the conversation, unless nothing was answered yet.
func (v *conversation) run(ctx context.Context, read func() (string, error)) error {
	answered := false
	for {
		line, err := read()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case strings.TrimSpace(line) == "":
			continue
		}
		if strings.HasPrefix(line, "/") {
			again, end := v.command(line)
			if end {
				return nil
			}
			if !again {
				continue
			}
		} else {
			v.r.Messages = append(v.r.Messages, client.Message{Role: "user", Content: line})
		}
		if err := v.answer(ctx); err != nil {
			if ctx.Err() != nil || !answered {
				return err
			}
			v.say("error: %v", err)
			continue
		}
		answered = true
	}
}

func (v *conversation) say(format string, args ...any) {
	fmt.Fprintf(v.out, format+"\n", args...)
}

// answer prints the answer to the messages, and adds it to them. Without one, the user's last message is taken back.
func (v *conversation) answer(ctx context.Context) error {
	begin := time.Now()
	var first time.Duration
	var text strings.Builder
	tokens := 0
	for chunk, err := range v.client.ChatStream(ctx, v.r) {
		if err != nil {
			v.r.Messages = v.r.Messages[:len(v.r.Messages)-1]
			return err
		}
		if chunk.Usage != nil {
			tokens = chunk.Usage.CompletionTokens
		}
		for _, c := range chunk.Choices {
			if piece := c.Content(); piece != "" {
				if first == 0 {
					first = time.Since(begin)
				}
				text.WriteString(piece)
				fmt.Fprint(v.out, piece)
			}
		}
	}
	rate := float64(tokens) / max(time.Since(begin)-first, time.Microsecond).Seconds()
	v.say("\n(%d tokens, the first after %.2f s, then %.1f per second)", tokens, first.Seconds(), rate)
	v.r.Messages = append(v.r.Messages, client.Message{Role: "assistant", Content: text.String()})
	return nil
}

// command runs a line that begins with /. again says that the last message needs a new answer.
func (v *conversation) command(line string) (again, end bool) {
	name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	rest = strings.TrimSpace(rest)
	switch name {
	case "/bye", "/exit", "/quit":
		return false, true
	case "/help", "/?":
		v.say("%s", chatHelp)
	case "/clear":
		v.clear()
		v.say("a new conversation")
	case "/system":
		v.system = rest
		v.clear()
		v.say("a new conversation, with the system message %q", rest)
	case "/set":
		if err := v.set(rest); err != nil {
			v.say("error: %v", err)
		}
	case "/retry":
		n := len(v.r.Messages)
		if n < 2 || v.r.Messages[n-1].Role != "assistant" {
			v.say("error: found no answer, expected one to replace")
			return false, false
		}
		v.r.Messages = v.r.Messages[:n-1]
		return true, false
	default:
		v.say("error: found command %s, expected one of /system, /set, /clear, /retry, /help, /bye", name)
	}
	return false, false
}

// set sets a parameter of sampling, or shows all.
func (v *conversation) set(text string) error {
	if text == "" {
		for _, line := range []string{
			"temperature " + shown(v.r.Temperature), "top_p " + shown(v.r.TopP), fmt.Sprint("top_k ", v.r.TopK), fmt.Sprint("min_p ", v.r.MinP),
			fmt.Sprint("max_tokens ", v.r.MaxCompletionTokens), "seed " + shown(v.r.Seed),
		} {
			v.say("%s", line)
		}
		return nil
	}
	name, value, _ := strings.Cut(text, " ")
	number, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return fmt.Errorf("found %s %q, expected a number", name, value)
	}
	whole := int64(number)
	switch name {
	case "temperature":
		v.r.Temperature = &number
	case "top_p":
		v.r.TopP = &number
	case "top_k":
		v.r.TopK = int(whole)
	case "min_p":
		v.r.MinP = number
	case "max_tokens":
		v.r.MaxCompletionTokens = int(whole)
	case "seed":
		v.r.Seed = &whole
	default:
		return fmt.Errorf("found %q, expected temperature, top_p, top_k, min_p, max_tokens or seed", name)
	}
	v.say("%s is %v", name, number)
	return nil
}

// shown is a setting, or that the server's default applies.
func shown[T any](v *T) string {
	if v == nil {
		return "(the server's)"
	}
	return fmt.Sprint(*v)
}
