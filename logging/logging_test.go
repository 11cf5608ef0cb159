package logging_test

import (
	"cmp"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
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

// console is a line of the console, without the codes of colors.
func console(t *testing.T, write func(*zerolog.Event)) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer f.Close()
	log, err := logging.New(f, logging.Options{Level: "info", Format: "console"})
	require.NoError(t, err)
	write(log.Info())
	text, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	return regexp.MustCompile("\x1b\\[[0-9]+m").ReplaceAllString(string(text), "")
}

func TestTheConsoleHasUnits(t *testing.T) {
	line := console(t, func(e *zerolog.Event) {
		e.Uint64("kv_bytes", 4026138624).Dur("took", 684702750*time.Nanosecond).Int("bytes", 449).Int("status", 200).Int("percent", 43).
			Str("numerics", "e8a588681a4f7618").Str("model", "tiny").Dur("ttft", 0).Msg("model loaded")
	})
	require.Contains(t, line, "model loaded")
	for _, want := range []string{`kv="3.7 GiB"`, "took=685ms", `bytes="449 B"`, "status=200", "done=43%", "model=tiny", "ttft=0s"} {
		require.Contains(t, line, want)
	}
	require.NotContains(t, line, "numerics")
	require.NotContains(t, line, "4026138624")
}

func TestDurationsHaveThreeDigits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 999: "999ns", 1366251296: "1.37s", 14628169: "14.6ms", 59999999999: "1m0s", 75_400_000_000: "1m15s",
		2 * time.Hour: "2h0m0s", 12345 * time.Nanosecond: "12.3µs",
	} {
		require.Equal(t, want, logging.Duration(d))
	}
}

// TestAllDurationsAreKnown: each name that a logger gets a duration for, in the whole program.
func TestAllDurationsAreKnown(t *testing.T) {
	var found []string
	call := regexp.MustCompile(`\.Dur\("([a-z_]+)"`)
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." || d.Name() == "node_modules" ||
			d.Name() == "build") {
			return cmp.Or(err, fs.SkipDir)
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range call.FindAllStringSubmatch(string(text), -1) {
			found = append(found, m[1])
		}
		return err
	}))
	require.NotEmpty(t, found)
	require.Subset(t, logging.Durations(), found, "each duration that is logged is one of Durations")
}
