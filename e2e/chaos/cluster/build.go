package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Programs are the binaries that a cluster runs.
type Programs struct {
	Millrace, NATSServer string
}

// natsServer is the package of the NATS server that Millrace embeds, in the same
// version, which go.mod names.
const natsServer = "github.com/nats-io/nats-server/v2"

// Build builds both programs into dir. The working directory must be in the module.
func Build(ctx context.Context, dir string) (Programs, error) {
	p := Programs{Millrace: filepath.Join(dir, "millrace"), NATSServer: filepath.Join(dir, "nats-server")}
	for path, pkg := range map[string]string{p.Millrace: "github.com/millrace/millrace/cmd/millrace", p.NATSServer: natsServer} {
		out, err := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", path, pkg).CombinedOutput()
		if err != nil {
			return p, fmt.Errorf("go build %s: %w: %s", pkg, err, out)
		}
	}
	return p, nil
}

// BuildCommit builds the program of a commit with its libraries into dir, unless it is there. That takes
// minutes. The working directory must be in the repository.
func BuildCommit(ctx context.Context, dir, commit string) (string, error) {
	source := filepath.Join(dir, "millrace-"+commit)
	program := filepath.Join(source, "bin", "millrace")
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	for _, command := range [][]string{
		{"git", "worktree", "prune"},
		{"git", "worktree", "add", "--force", "--detach", source, commit},
		{"make", "-C", source, "build"},
	} {
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, out[max(0, len(out)-outputTail):])
		}
	}
	return program, nil
}

// outputTail is the length of a failed command's output in an error, in bytes.
const outputTail = 2000
