package node

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRolesKnowOnlyTheirMessages: node wires the roles, which know the messages and not each other.
func TestRolesKnowOnlyTheirMessages(t *testing.T) {
	const actors = "github.com/millrace/millrace/actors/"
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}}:{{range .Imports}} {{.}}{{end}}`,
		"../...").CombinedOutput()
	require.NoError(t, err, string(out))
	roles := 0
	for line := range strings.Lines(string(out)) {
		role, imports, _ := strings.Cut(strings.TrimSpace(line), ":")
		if role == actors+"node" {
			continue
		}
		roles++
		for path := range strings.FieldsSeq(imports) {
			if strings.HasPrefix(path, actors) && !strings.HasPrefix(path, actors+"msg") {
				t.Errorf("%s imports %s, expected nothing of its siblings but msg", role, path)
			}
		}
	}
	require.GreaterOrEqual(t, roles, 6, string(out))
}
