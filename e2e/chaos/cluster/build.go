package cluster

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
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
