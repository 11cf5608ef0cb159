package mapped_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/compute/mapped"
)

const size = 64 << 10

// file makes a file of size bytes.
func file(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "model.safetensors"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	require.NoError(t, f.Truncate(size))
	return f
}

// TestMain is also the process that reads a page that is gone, from the file MILLRACE_TEST_CUT.
func TestMain(m *testing.M) {
	if path := os.Getenv("MILLRACE_TEST_CUT"); path != "" {
		os.Exit(readCut(path))
	}
	os.Exit(m.Run())
}

func readCut(path string) int {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 3
	}
	m, err := mapped.File(f, path, size, unix.MAP_PRIVATE)
	if err != nil || f.Truncate(size/2) != nil {
		return 4
	}
	return int(m[size-1]) + 5
}

func TestReadingAFileThatWasCutShortNamesItAndEndsWithOne(t *testing.T) {
	f := file(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "MILLRACE_TEST_CUT="+f.Name())
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s", out)
	require.Equal(t, 1, exit.ExitCode(), "%s", out)
	require.Contains(t, string(out), "millrace: "+f.Name()+": found a page that is gone")
	require.NotContains(t, string(out), "goroutine")
}

// TestOtherFaultsStayGos: a fault at an address that is no file's of this package is the
// runtime's, as before; also of one that was unmapped here.
func TestOtherFaultsStayGos(t *testing.T) {
	f := file(t)
	ours, err := mapped.File(f, f.Name(), size, unix.MAP_PRIVATE)
	require.NoError(t, err)
	require.NoError(t, mapped.Unmap(ours))
	other, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_PRIVATE)
	require.NoError(t, err)
	defer unix.Munmap(other)
	require.NoError(t, f.Truncate(0))
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var read byte
	require.Panics(t, func() { read += other[size-1] })
	require.Panics(t, func() { read += other[0] }, "more than once")
	require.Zero(t, read)
}

func TestManyFilesAreMappedAndUnmapped(t *testing.T) {
	f := file(t)
	for range 3 {
		var all [][]byte
		for range 40 {
			m, err := mapped.File(f, f.Name(), size, unix.MAP_SHARED)
			require.NoError(t, err)
			require.Len(t, m, size)
			all = append(all, m)
		}
		for _, m := range all {
			require.Zero(t, m[size-1])
			require.NoError(t, mapped.Unmap(m))
		}
	}
}

func TestAFileThatIsBeingWrittenIsRefused(t *testing.T) {
	f := file(t)
	_, err := mapped.File(f, f.Name(), size+1, unix.MAP_PRIVATE)
	require.ErrorIs(t, err, mapped.ErrChanged)
	require.ErrorContains(t, err, "found 65536 bytes, expected 65537")
	require.ErrorContains(t, err, f.Name())
}
