package datadir

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var me = Holder{HTTP: "127.0.0.1:8080", NATS: "127.0.0.1:4222"}

func TestMain(m *testing.M) {
	if dir := os.Getenv("DATADIR_TEST_HOLD"); dir != "" {
		if _, err := Lock(context.Background(), dir, Holder{HTTP: "127.0.0.1:9000", NATS: "127.0.0.1:9001"}, 0); err != nil {
			panic(err)
		}
		os.Stdout.WriteString("held\n") //nolint:errcheck // the parent waits for it
		select {}
	}
	os.Exit(m.Run())
}

// holder starts a process that holds a folder.
func holder(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "DATADIR_TEST_HOLD="+dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it may be dead
		cmd.Wait()         //nolint:errcheck // it was killed
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "held\n", line)
	return cmd
}

// TestASecondProcessIsToldWhoHoldsTheFolder names process, addresses and time.
func TestASecondProcessIsToldWhoHoldsTheFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	other := holder(t, dir)
	_, err := Lock(t.Context(), dir, me, 0)
	var held *HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, other.Process.Pid, held.Holder.PID)
	require.ErrorContains(t, err, "127.0.0.1:9000")
	require.ErrorContains(t, err, "127.0.0.1:9001")
	require.ErrorContains(t, err, time.Now().Format("2006-"))
	require.Equal(t, other.Process.Pid, HolderOf(dir).PID)
}

// TestAKilledProcessHoldsNothing kills the holder while another one waits for the folder.
func TestAKilledProcessHoldsNothing(t *testing.T) {
	dir := t.TempDir()
	other := holder(t, dir)
	type result struct {
		dir *Dir
		err error
	}
	got := make(chan result, 1)
	go func() {
		d, err := Lock(t.Context(), dir, me, time.Minute)
		got <- result{d, err}
	}()
	require.NoError(t, other.Process.Kill())
	r := <-got
	require.NoError(t, r.err)
	require.NoError(t, r.dir.Close())
	require.Nil(t, HolderOf(dir))
}

// TestServersOfOnePlaceGetFoldersOfTheirOwn starts three in turn, and then the second alone: it finds the folder that it had.
func TestServersOfOnePlaceGetFoldersOfTheirOwn(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	var dirs []*Dir
	for _, start := range []struct{ port, want string }{{"8080", data}, {"8081", data + "-8081"}, {"8081", data + "-8081-2"}} {
		d, err := Own(t.Context(), data, start.port, me, 0)
		require.NoError(t, err)
		require.Equal(t, start.want, d.Path)
		dirs = append(dirs, d)
	}
	for _, d := range dirs {
		require.NoError(t, d.Close())
	}
	d, err := Own(t.Context(), data, "8081", me, 0)
	require.NoError(t, err)
	require.Equal(t, data+"-8081", d.Path)
	defer d.Close()
	first, err := Own(t.Context(), data, "8080", me, 0)
	require.NoError(t, err)
	defer first.Close()
	require.Equal(t, data, first.Path)
}

func TestAHolderWithoutANameIsAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	d, err := Lock(t.Context(), dir, me, 0)
	require.NoError(t, err)
	defer d.Close()
	require.NoError(t, os.WriteFile(filepath.Join(dir, lockFile), []byte(`{"pid":`), 0o600))
	_, err = Lock(t.Context(), dir, me, 0)
	require.True(t, strings.HasSuffix(err.Error(), "is held by another process"), err)
}

func TestAFolderThatCannotBeMadeIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := Lock(t.Context(), filepath.Join(file, "data"), me, 0)
	require.ErrorContains(t, err, "not a directory")
}
