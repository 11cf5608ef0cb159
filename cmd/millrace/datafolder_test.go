package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/config"
)

// folderOfWriter is the environment variable that makes this test program a writer of records in a folder.
const folderOfWriter = "MILLRACE_TEST_FOLDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(folderOfWriter); dir != "" {
		if err := writeRecords(dir); err != nil {
			fmt.Fprintln(os.Stdout, "error:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// writeRecords stores records until the process is killed. It prints the number of records that it found, and the number of each that is
// stored.
func writeRecords(dir string) error {
	ctx := context.Background()
	fmt.Fprintln(os.Stdout, "begun 0")
	to, err := openNATS(ctx, &config.Serve{Listen: "127.0.0.1:0", NATSListen: "127.0.0.1:0", DataDir: dir, DataDirNamed: true,
		BodyLimit: 1 << 20, Roles: gatewayRole()}, nil, zerolog.Nop())
	if err != nil {
		return err
	}
	defer to.stop()
	js, err := jetstream.New(to.nodes)
	if err != nil {
		return err
	}
	stream, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "RECORDS", Subjects: []string{"records"}})
	if err != nil {
		return err
	}
	n := stream.CachedInfo().State.Msgs
	fmt.Fprintln(os.Stdout, "found", n)
	for {
		n++
		if _, err := js.Publish(ctx, "records", fmt.Append(nil, n)); err != nil {
			return err
		}
		fmt.Fprintln(os.Stdout, "stored", n)
	}
}

// writer is a process of writeRecords.
type writer struct {
	cmd *exec.Cmd
	out *bufio.Reader
}

func startWriter(t *testing.T, dir string) *writer {
	t.Helper()
	w := &writer{cmd: exec.CommandContext(t.Context(), os.Args[0])}
	w.cmd.Env = append(os.Environ(), folderOfWriter+"="+dir)
	out, err := w.cmd.StdoutPipe()
	require.NoError(t, err)
	w.out = bufio.NewReader(out)
	require.NoError(t, w.cmd.Start())
	t.Cleanup(w.kill)
	w.number(t, "begun")
	return w
}

// number reads the next line, and returns its number.
func (w *writer) number(t *testing.T, word string) int {
	t.Helper()
	line, err := w.out.ReadString('\n')
	require.NoError(t, err)
	text, ok := strings.CutPrefix(strings.TrimSpace(line), word+" ")
	require.True(t, ok, "found %q, expected %s and a number", line, word)
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// kill ends the process as SIGKILL does.
func (w *writer) kill() {
	w.cmd.Process.Kill() //nolint:errcheck // it may have ended
	w.cmd.Wait()         //nolint:errcheck // it was killed
}

// TestKillsWithTwoServersInOneFolderLoseNoRecord kills a server while it writes, 50 times and in short mode 8. The next one waits for the
// folder already then, and finds every record.
func TestKillsWithTwoServersInOneFolderLoseNoRecord(t *testing.T) {
	const records = 200
	kills := 50
	if testing.Short() {
		kills = 8
	}
	dir := t.TempDir()
	stored := 0
	now := startWriter(t, dir)
	require.Zero(t, now.number(t, "found"))
	for range kills {
		next := startWriter(t, dir)
		for range records {
			stored = now.number(t, "stored")
		}
		now.kill()
		found := next.number(t, "found")
		require.GreaterOrEqual(t, found, stored)
		now = next
	}
	require.GreaterOrEqual(t, stored, kills*records)
}

// TestASecondServerInAFolderIsRefused names the first and the ways out, and leaves the first alone.
func TestASecondServerInAFolderIsRefused(t *testing.T) {
	dir := t.TempDir()
	first := startWriter(t, dir)
	first.number(t, "found")
	_, err := openNATS(t.Context(), &config.Serve{Listen: "127.0.0.1:0", NATSListen: "127.0.0.1:0", DataDir: dir, DataDirNamed: true}, nil,
		zerolog.Nop())
	require.ErrorContains(t, err, fmt.Sprintf("--data-dir: %s is held by process %d ", dir, first.cmd.Process.Pid))
	require.ErrorContains(t, err, "take another --data-dir, or join it with --nats nats://127.0.0.1:")
	require.NotContains(t, err.Error(), "nats://127.0.0.1:0")
	_, _, checks := doctor(t, "--data-dir", dir)
	require.Equal(t, statusWarn, checks["data directory"].Status)
	require.Contains(t, checks["data directory"].Detail, strconv.Itoa(first.cmd.Process.Pid))
	first.number(t, "stored")
}

// TestASecondServerInTheDefaultFolderGetsOneOfItsOwn says so in the log.
func TestASecondServerInTheDefaultFolderGetsOneOfItsOwn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	first := startWriter(t, dir)
	first.number(t, "found")
	var logged apitest.Log
	s := &config.Serve{Listen: "127.0.0.1:8099", NATSListen: "127.0.0.1:0", DataDir: dir, BodyLimit: 1 << 20, Roles: gatewayRole()}
	to, err := openNATS(t.Context(), s, nil, zerolog.New(&logged))
	require.NoError(t, err)
	to.stop()
	require.Equal(t, dir+"-8099", s.DataDir)
	require.Contains(t, logged.String(), "this one has a folder of its own")
	require.Contains(t, logged.String(), strconv.Itoa(first.cmd.Process.Pid))
	first.number(t, "stored")
}

// TestAStartAfterAKillSaysOneSentence has no line of JetStream about its indexes.
func TestAStartAfterAKillSaysOneSentence(t *testing.T) {
	dir := t.TempDir()
	for range 3 { // JetStream writes an index at a clean stop, and after some time
		s := &config.Serve{Listen: "127.0.0.1:0", NATSListen: "127.0.0.1:0", DataDir: dir, DataDirNamed: true, BodyLimit: 1 << 20,
			Roles: gatewayRole()}
		var logged apitest.Log
		to, err := openNATS(t.Context(), s, nil, zerolog.New(&logged).Level(zerolog.InfoLevel))
		require.NoError(t, err)
		to.stop()
		var lines []string
		for line := range strings.Lines(logged.String()) {
			var l struct{ Message string }
			require.NoError(t, json.Unmarshal([]byte(line), &l))
			lines = append(lines, l.Message)
		}
		require.LessOrEqual(t, len(lines), 1, lines)
		for _, line := range lines {
			require.Contains(t, line, "did not stop cleanly")
		}
		w := startWriter(t, dir)
		w.number(t, "found")
		for range 5 {
			w.number(t, "stored")
		}
		w.kill()
	}
}

func TestNotesAboutDamagedFilesStayInTheLog(t *testing.T) {
	var logged apitest.Log
	l := newNATSLog(zerolog.New(&logged).Level(zerolog.InfoLevel))
	l.Warnf("Filestore [%s] Stream state detected prior state, could not locate msg block %d", "KV_X", 3)
	l.Warnf("Filestore [%s] Stream state outdated, last block has additional entries, will rebuild", "KV_X")
	require.Empty(t, logged.String())
	l.Warnf("Filestore [%s] indexCacheBuf corrupt record state in %s", "KV_X", "1.blk")
	require.Contains(t, logged.String(), "corrupt record state")
	l.recovered()
	require.Equal(t, 1, strings.Count(logged.String(), "did not stop cleanly"))
	l.Warnf("Filestore [%s] Stream state encountered internal inconsistency on write", "KV_X")
	require.Contains(t, logged.String(), "internal inconsistency")
}

// TestAPortInUseIsAnErrorAtOnce names both ways out, before a folder is made.
func TestAPortInUseIsAnErrorAtOnce(t *testing.T) {
	first := &config.Serve{Listen: "127.0.0.1:0", NATSListen: "127.0.0.1:0", DataDir: t.TempDir(), BodyLimit: 1 << 20, Roles: gatewayRole()}
	to, err := openNATS(t.Context(), first, nil, zerolog.Nop())
	require.NoError(t, err)
	defer to.stop()
	dir := filepath.Join(t.TempDir(), "data")
	begin := time.Now()
	_, err = openNATS(t.Context(), &config.Serve{Listen: "127.0.0.1:0", NATSListen: strings.TrimPrefix(to.nodes.ConnectedUrl(), "nats://"),
		DataDir: dir}, nil, zerolog.Nop())
	require.ErrorContains(t, err, "address already in use: --nats-listen takes another address")
	require.ErrorContains(t, err, "--nats URL joins")
	require.Less(t, time.Since(begin), natsStart)
	require.NoDirExists(t, dir)
}
