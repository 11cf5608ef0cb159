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

// natsServer is the package of the server that Millrace also embeds: the same
// version, by go.mod.
const natsServer = "github.com/nats-io/nats-server/v2"

// Build builds both programs into dir. The working directory is in the module.
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

// BuildCommit builds Millrace as it was at a commit into dir, with its libraries, once: minutes.
// The working directory is in the repository.
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

// outputTail is how much of a failed command's output an error has, in bytes.
const outputTail = 2000
