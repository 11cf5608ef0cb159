package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/millrace/millrace/client"
)

// conversation is a conversation with a model, and its settings.
type conversation struct {
	client client.Client
	out    io.Writer
	styled bool // out is a terminal that shows styles
	system string
	r      client.ChatRequest // with all messages

	// interruptible returns a context that ends at the next Ctrl-C.
	interruptible func(context.Context) (context.Context, context.CancelFunc)
}

func newConversation(c client.Client, model, system string, out io.Writer) *conversation {
	v := &conversation{client: c, out: out, system: system, r: client.ChatRequest{Model: model}}
	v.interruptible = func(ctx context.Context) (context.Context, context.CancelFunc) {
		return signal.NotifyContext(ctx, os.Interrupt)
	}
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

// run serves the messages of the user. An error of the server does not end the conversation, unless nothing was answered yet.
func (v *conversation) run(ctx context.Context, read readLine) error {
	answered, interrupted := false, false
	for ctx.Err() == nil {
		text, err := readMessage(read)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, errInterrupted) && interrupted:
			return nil
		case errors.Is(err, errInterrupted):
			interrupted = true
			v.say("(another Ctrl-C, or Ctrl-D, ends the program)")
			continue
		case err != nil:
			return err
		}
		interrupted = false
		if strings.TrimSpace(text) == "" {
			continue
		}
		if strings.HasPrefix(text, "/") {
			again, end := v.command(ctx, text)
			if end {
				return nil
			}
			if !again {
				continue
			}
		} else {
			v.r.Messages = append(v.r.Messages, client.Message{Role: "user", Content: text})
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
	return ctx.Err()
}

func (v *conversation) say(format string, args ...any) {
	fmt.Fprintf(v.out, format+"\n", args...)
}

// answer prints the answer to the messages, and adds it to them. Without one, the user's last message is taken back. A Ctrl-C ends the
// answer, of which what is there is kept.
func (v *conversation) answer(ctx context.Context) error {
	stoppable, stop := v.interruptible(ctx)
	defer stop()
	begin := time.Now()
	var first time.Duration
	printed := v.newAnswer()
	tokens, finish := 0, ""
	for chunk, err := range v.client.ChatStream(stoppable, v.r) {
		if err != nil && stoppable.Err() != nil && ctx.Err() == nil {
			finish = "stopped"
			break
		}
		if err != nil {
			printed.end()
			v.r.Messages = v.r.Messages[:len(v.r.Messages)-1]
			return err
		}
		if chunk.Usage != nil {
			tokens = chunk.Usage.CompletionTokens
		}
		for _, c := range chunk.Choices {
			if first == 0 && c.Content()+c.Delta.Reasoning != "" {
				first = time.Since(begin)
			}
			printed.reasoning(c.Delta.Reasoning)
			printed.content(c.Content())
			finish = c.FinishReason
		}
	}
	printed.end()
	if text := printed.text.String(); text != "" || finish != "stopped" {
		v.r.Messages = append(v.r.Messages, client.Message{Role: "assistant", Content: text})
	} else {
		v.r.Messages = v.r.Messages[:len(v.r.Messages)-1]
	}
	if finish == "stopped" {
		v.say("\n(stopped)")
		return nil
	}
	note := ""
	if finish == "length" {
		note = ", cut at the token limit"
	}
	rate := float64(tokens) / max(time.Since(begin)-first, time.Microsecond).Seconds()
	v.say("\n(%d tokens, the first after %.2f s, then %.1f per second%s)", tokens, first.Seconds(), rate, note)
	return nil
}

// printedAnswer prints an answer while it comes: with styles on a terminal, else its content alone, as it is.
type printedAnswer struct {
	out   io.Writer
	width int // 0: no styles
	text  strings.Builder

	thought *markdown
	shown   *markdown
}

func (v *conversation) newAnswer() *printedAnswer {
	a := &printedAnswer{out: v.out}
	if v.styled {
		a.width = 80
		if f, ok := v.out.(*os.File); ok {
			if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
				a.width = width
			}
		}
	}
	return a
}

// reasoning prints what the model thinks, on a terminal alone.
func (a *printedAnswer) reasoning(text string) {
	if a.width == 0 || text == "" {
		return
	}
	if a.thought == nil {
		a.thought = newMarkdown(a.out, a.width, sgrDim)
	}
	a.thought.add(text)
}

func (a *printedAnswer) content(text string) {
	a.text.WriteString(text)
	switch {
	case text == "":
		return
	case a.width == 0:
		fmt.Fprint(a.out, text)
		return
	case a.shown == nil:
		if a.thought != nil {
			a.thought.close()
			fmt.Fprint(a.out, "\n\n")
		}
		a.shown = newMarkdown(a.out, a.width, "")
	}
	a.shown.add(text)
}

// end ends the styles.
func (a *printedAnswer) end() {
	if a.shown != nil {
		a.shown.close()
	} else if a.thought != nil {
		a.thought.close()
	}
}

// command runs a line that begins with /. again says that the last message needs a new answer.
func (v *conversation) command(ctx context.Context, line string) (again, end bool) {
	name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	rest = strings.TrimSpace(rest)
	var err error
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
		err = v.set(ctx, rest)
	case "/save":
		err = v.save(rest)
	case "/load":
		err = v.load(rest)
	case "/retry":
		n := len(v.r.Messages)
		if n < 2 || v.r.Messages[n-1].Role != "assistant" {
			v.say("error: found no answer, expected one to replace")
			return false, false
		}
		v.r.Messages = v.r.Messages[:n-1]
		return true, false
	default:
		err = fmt.Errorf("found command %s, expected one of /system, /set, /save, /load, /clear, /retry, /help, /bye", name)
	}
	if err != nil {
		v.say("error: %v", err)
	}
	return false, false
}

// save writes the conversation to a file, as the request that it would be.
func (v *conversation) save(path string) error {
	if path == "" {
		return errors.New("found /save without a file, expected /save FILE")
	}
	text, err := json.MarshalIndent(v.r, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o600)
	}
	if err == nil {
		v.say("%d messages are in %s", len(v.r.Messages), path)
	}
	return err
}

// load continues the conversation of a file. The model stays.
func (v *conversation) load(path string) error {
	if path == "" {
		return errors.New("found /load without a file, expected /load FILE")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var r client.ChatRequest
	if err := json.Unmarshal(text, &r); err != nil || len(r.Messages) == 0 {
		return fmt.Errorf("%s: found no messages, expected a file that /save has written", path)
	}
	system := ""
	for i, m := range r.Messages {
		switch {
		case i == 0 && m.Role == "system":
			system = m.Content
		case m.Role != "user" && m.Role != "assistant":
			return fmt.Errorf("%s: found a message of role %q, expected user or assistant", path, m.Role)
		}
	}
	if err := checkSampling(&r); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	r.Model = v.r.Model
	v.r, v.system = r, system
	for _, m := range r.Messages[max(0, len(r.Messages)-2):] {
		v.say("%s: %s", m.Role, m.Content)
	}
	v.say("(%d messages of %s)", len(r.Messages), path)
	return nil
}
