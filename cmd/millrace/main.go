// Command millrace serves language models over HTTP and NATS, and measures, checks and explains
// them. It reads flags and wires packages. It must not know how a package does its work.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/millrace/millrace/config"
)

// version and commit identify the build. The Makefile sets them.
var version, commit = "devel", "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes a command line. It returns 0, 1 for an error, 2 for one of usage and for an answer that could not be verified.
func run(ctx context.Context, args, environ []string, stdout io.Writer, stderr *os.File) int {
	root := newRoot(environ, stderr)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "millrace: %s\n", oneLine(err))
	return exitCode(err)
}

// exitCode returns 1 for the failure of a command, and 2 for an error before it ran (of arguments,
// flags or configuration) and for an unchecked.
func exitCode(err error) int {
	_, ran := errors.AsType[*failure](err)
	_, unsure := errors.AsType[*unchecked](err)
	if ran && !unsure && !errors.Is(err, config.ErrUsage) {
		return 1
	}
	return 2
}

// oneLine joins the lines of joined errors and of cobra's suggestions.
func oneLine(err error) string {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}
