package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// help is the commands of the program and their flags, with types and defaults, as --help prints them. The prose of
// flags may change.
func help(ctx context.Context, s *subject) (facts, error) {
	f := facts{}
	if err := f.command(ctx, s.program, nil); err != nil {
		return nil, err
	}
	return f.withoutGlobal(), nil
}

// withoutGlobal leaves out the flags of a command that are those of every command. Its help may list them with its own.
func (f facts) withoutGlobal() facts {
	rest := facts{}
	for key, value := range f {
		command, flag, is := strings.Cut(key, " --")
		if global, ok := f["millrace --"+flag]; !is || !ok || command == "millrace" || global != value || flag == "help" {
			rest[key] = value
		}
	}
	return rest
}

// command adds a command and those below it.
func (f facts) command(ctx context.Context, program string, path []string) error {
	text, err := exec.CommandContext(ctx, program, append(path, "--help")...).Output()
	if err != nil {
		return fmt.Errorf("millrace %s --help: %w", strings.Join(path, " "), err)
	}
	name := strings.Join(append([]string{"millrace"}, path...), " ")
	f[name] = "command"
	var below []string
	section := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		switch flag := flagLine.FindStringSubmatch(line); {
		case line != "" && line[0] != ' ':
			section = line
		case strings.HasSuffix(section, "ommands:") && line != "":
			below = append(below, strings.Fields(line)[0])
		case len(flag) > 0:
			f[name+" --"+flag[2]] = strings.TrimSpace(flag[1] + " " + flag[3] + " " + defaultOf.FindString(line))
		}
	}
	for _, sub := range below {
		if sub == "completion" || sub == "help" { // Cobra's own
			continue
		}
		if err := f.command(ctx, program, append(slices.Clip(path), sub)); err != nil {
			return err
		}
	}
	return nil
}

var (
	// flagLine is the form in which pflag prints a flag: "  -s, --name type   what it does".
	flagLine = regexp.MustCompile(`^\s{2,}(-\w,)?\s*--([\w-]+)(?: (\S+))?\s{2,}`)
	// defaultOf is what pflag adds where a default is not the zero value.
	defaultOf = regexp.MustCompile(`\(default \S+\)$`)
)
