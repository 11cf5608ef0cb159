package logging_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/logging"
)

// logged is what the logger writes to a file, which is no terminal.
func logged(t *testing.T, o logging.Options) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer f.Close()
	log, err := logging.New(f, o)
	require.NoError(t, err)
	log.Debug().Msg("quiet")
	log.Info().Str("request", "cmpl-1").Msg("loud")
	text, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	return string(text)
}

func TestLogsAreJSONWhereThereIsNoTerminal(t *testing.T) {
	var line map[string]any
	require.NoError(t, json.Unmarshal([]byte(logged(t, logging.Options{Level: "info", Format: "auto"})), &line))
	require.Equal(t, "loud", line["message"])
	require.Equal(t, "cmpl-1", line["request"])
	require.Contains(t, line, "time")
}

func TestTheConsoleFormatCanBeForced(t *testing.T) {
	text := logged(t, logging.Options{Level: "debug", Format: "console"})
	require.Contains(t, text, "quiet")
	require.NotContains(t, text, "{")
}

func TestTheLevelHidesWhatIsBelow(t *testing.T) {
	require.Empty(t, logged(t, logging.Options{Level: "error", Format: "json"}))
}

func TestUnknownOptionsAreErrors(t *testing.T) {
	for _, o := range []logging.Options{{Level: "loud", Format: "auto"}, {Level: "", Format: "auto"}, {Level: "info", Format: "xml"}} {
		_, err := logging.New(os.Stderr, o)
		require.Error(t, err)
	}
}
