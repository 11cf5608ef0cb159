// Command scripted serves all APIs over HTTP with a model whose answers are written down, so that an agent's loop ends the same way in
// every run. It prints the address of the server, and ends with SIGTERM or an interrupt.
//
// The model calls the first tool that it knows to write a file, calls it again to read the file, and then says what it has read. Without
// such a tool it answers with the text of SCRIPTED_ANSWER.
//
// It must not know what an agent expects of a model, only what its calls look like.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/call"
	httpapi "github.com/millrace/millrace/api/http"
)

// The model writes word into a file, which no client can know before.
const (
	word  = "millrace-4711"
	write = "echo " + word + " > note.txt"
	read  = "cat note.txt"
)

// commands are the tools of agents that run a command in a shell, with the names of their arguments.
var commands = map[string]struct {
	argument string
	others   map[string]any
}{
	"exec_command": {argument: "cmd"},                                                     // Codex CLI
	"bash":         {argument: "command", others: map[string]any{"description": "Notes"}}, // opencode
	"Bash":         {argument: "command", others: map[string]any{"description": "Notes"}}, // Claude Code
	"run":          {argument: "command"},                                                 // the tests of this folder
}

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "scripted:", err)
		os.Exit(1)
	}
}

func serve() error {
	engine := apitest.New(answer)
	engine.Served = []api.Model{{ID: "scripted", WeightFacts: api.WeightFacts{Created: time.Now(), ContextLength: 1 << 18},
		TextFacts: api.TextFacts{Format: "hermes"}}}
	handler, err := httpapi.New(engine, httpapi.Options{})
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(os.Stdout, "http://%s\n", listener.Addr()); err != nil {
		return err
	}
	ended := make(chan error, 1)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { ended <- server.Serve(listener) }()
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, os.Interrupt, syscall.SIGTERM)
	select {
	case err := <-ended:
		return err
	case <-stopped:
		return server.Close()
	}
}

// answer sends the next answer of a conversation in small pieces.
func answer(r *api.Request, s *apitest.Stream) {
	text := next(r)
	pieces := []string{}
	for len(text) > 0 {
		n := min(len(text), 7)
		pieces = append(pieces, text[:n])
		text = text[n:]
	}
	apitest.Say(pieces...)(r, s)
}

// next returns the model's text after the conversation of a request.
func next(r *api.Request) string {
	results := 0 // of tools, since the user's last message
	last := ""
	for _, m := range slices.Backward(r.Messages) {
		if m.Role == "user" {
			break
		}
		if m.Role == "tool" {
			results++
			last = cmp.Or(last, m.Content)
		}
	}
	for _, tool := range call.Tools(r.Tools) {
		known, ok := commands[tool.Name]
		switch {
		case !ok:
		case results == 0:
			return "I will make a note.\n" + callOf(tool.Name, known.argument, write, known.others)
		case results == 1:
			return callOf(tool.Name, known.argument, read, known.others)
		case strings.Contains(last, word):
			return "The note says " + word + "."
		default:
			return fmt.Sprintf("The tool said %q, which has no note.", last)
		}
	}
	return cmp.Or(os.Getenv("SCRIPTED_ANSWER"), "Paris.")
}

// callOf returns the text of a call, in the format of Hermes.
func callOf(tool, argument, command string, others map[string]any) string {
	arguments := map[string]any{argument: command}
	maps.Copy(arguments, others)
	text, err := json.Marshal(map[string]any{"name": tool, "arguments": arguments})
	if err != nil { // strings always marshal
		return ""
	}
	return "<tool_call>\n" + string(text) + "\n</tool_call>"
}
