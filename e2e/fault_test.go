package e2e_test

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// gpuBackend is an optional backend under test, with the flags that choose a device that the machine has.
type gpuBackend struct {
	name  string
	flags []string
	lost  string // what errors of a lost device contain
	// faultStep is after the steps of the first answer and before the last steps of faultStreams concurrent streams.
	faultStep int
}

var (
	sycl = gpuBackend{name: "sycl", flags: []string{"--backend", "sycl", "--device", "cpu"}, lost: "DEVICE_LOST", faultStep: 300}
	// The emulator takes 0.3 s for a step.
	cuda = gpuBackend{name: "cuda", flags: []string{"--backend", "cuda"}, lost: "a fault of kind lost", faultStep: 60}
)

// eachGPU runs a test for each optional backend.
func eachGPU(t *testing.T, test func(t *testing.T, b gpuBackend)) {
	for _, b := range []gpuBackend{sycl, cuda} {
		t.Run(b.name, func(t *testing.T) { test(t, b) })
	}
}

// program is the binary under test where it finds the backend, as in an installation: DIR/bin beside DIR/lib. The test
// is skipped where the library is not built, and that of cuda also where it finds no device.
func (b gpuBackend) program(t *testing.T) string {
	t.Helper()
	lib, err := filepath.Abs("../build/lib")
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(lib, "libmillrace_"+b.name+".so")); err != nil {
		t.Skipf("NOT TESTED: backend %s: %v; make %s builds it", b.name, err, b.name)
	}
	path, err := program()
	require.NoError(t, err)
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin", "millrace")
	require.NoError(t, os.Mkdir(filepath.Dir(bin), 0o755))
	require.NoError(t, os.Symlink(lib, filepath.Join(dir, "lib")))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(bin, data, 0o755))
	if b.name == "cuda" {
		out, err := runProgram(bin, nil, "doctor", "--json", "--backend", "cuda", "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0")
		if err != nil {
			t.Skipf("NOT TESTED: backend cuda: %s", out)
		}
	}
	return bin
}

const (
	faultStreams = 20
	faultBody    = `{"model":"tiny-chat","prompt":"Once upon a time","max_tokens":1000,"temperature":0,"ignore_eos":true,"stream":true}`
)

// faultVariable is the environment variable that makes a step fail.
func (b gpuBackend) faultVariable() string { return "MILLRACE_" + strings.ToUpper(b.name) + "_FAULT" }

// startFaulty starts a server on a device that will fail.
func (b gpuBackend) startFaulty(t *testing.T, fault string, args ...string) *server {
	args = append(append(slices.Clone(b.flags), "--kv-memory", "128MiB"), args...) // space for all streams
	return startProgram(t, b.program(t), []string{b.faultVariable() + "=" + fault}, args...)
}

// greedy returns an answer of the demo model at temperature 0.
func (s *server) greedy(t *testing.T) string {
	t.Helper()
	code, _, body := s.post(t, "/v1/completions",
		`{"model":"tiny-chat","prompt":"Once upon a time","max_tokens":40,"temperature":0,"ignore_eos":true}`)
	require.Equal(t, http.StatusOK, code, body)
	return parseAnswer(t, body).text()
}

// runIntoFault runs faultStreams streams, half of them over NATS, until the device
// fails. Each must get tokens and then an error with the reason.
func (s *server) runIntoFault(t *testing.T, why string) {
	t.Helper()
	nc := s.connect(t)
	var wg sync.WaitGroup
	for i := range faultStreams {
		wg.Go(func() {
			read := s.httpFailure
			if i%2 == 1 {
				read = func() (int, string, error) { return natsFailure(nc) }
			}
			chunks, message, err := read()
			switch {
			case err != nil:
				t.Errorf("stream %d: after %d chunks: %v", i, chunks, err)
			case chunks == 0:
				t.Errorf("stream %d: no token before the error", i)
			case !strings.Contains(message, why):
				t.Errorf("stream %d: found error %q, expected %q", i, message, why)
			}
		})
	}
	wg.Wait()
}

// httpFailure reads a stream up to its error. It returns the chunks before it.
func (s *server) httpFailure() (chunks int, message string, err error) {
	client := http.Client{Timeout: patience}
	r, err := client.Post("http://"+s.http+"/v1/completions", "application/json", strings.NewReader(faultBody))
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close() //nolint:errcheck // read only
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case strings.HasPrefix(data, `{"error"`):
			return chunks, data, nil
		default:
			chunks++
		}
	}
	return chunks, "", fmt.Errorf("the stream ended without an error: %w", lines.Err())
}

func natsFailure(nc *nats.Conn) (chunks int, message string, err error) {
	inbox := nc.NewRespInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return 0, "", err
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection ends soon
	if err := nc.PublishRequest("millrace.v1.completions", inbox, []byte(faultBody)); err != nil {
		return 0, "", err
	}
	for ; ; chunks++ {
		m, err := sub.NextMsg(patience)
		if err != nil {
			return chunks, "", err
		}
		switch end := m.Header.Get("Millrace-End"); end {
		case "":
		case "error":
			return chunks, string(m.Data), nil
		default:
			return chunks, "", fmt.Errorf("the stream ended with %q", end)
		}
	}
}

// exit waits for the process and returns its exit code.
func (s *server) exit(t *testing.T) int {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(patience):
		t.Fatal("the process does not end")
	}
	return s.cmd.ProcessState.ExitCode()
}

// TestADeviceThatFailsMidStepEndsItsStreamsAndComesBack covers every way in which
// a runtime reports a failure.
func TestADeviceThatFailsMidStepEndsItsStreamsAndComesBack(t *testing.T) {
	eachGPU(t, func(t *testing.T, b gpuBackend) {
		for _, kind := range []string{"async", "submit", "resources", "lost"} {
			t.Run(kind, func(t *testing.T) {
				s := b.startFaulty(t, fmt.Sprintf("step:%d:%s", b.faultStep, kind))
				before := s.greedy(t)
				s.runIntoFault(t, "a fault of kind "+kind)
				s.waitReady(t)
				require.Equal(t, before, s.greedy(t), "the same tokens as before")
				require.Eventually(t, func() bool { return s.regions(t) == 0 }, patience, time.Millisecond)
				require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
				require.Equal(t, 0, s.exit(t))
				require.Contains(t, s.log.String(), "the device is back")
			})
		}
	})
}

func TestADeviceThatDoesNotComeBackEndsTheProcess(t *testing.T) {
	eachGPU(t, func(t *testing.T, b gpuBackend) {
		s := b.startFaulty(t, fmt.Sprintf("step:%d+:lost", b.faultStep))
		s.runIntoFault(t, "a fault of kind lost")
		require.Equal(t, 1, s.exit(t))
		require.Regexp(t, `(?m)^millrace: the device failed: .*`+b.lost+`.*; and cannot be loaded again: .*`+b.lost, s.log.String())
	})
}

func TestAKernelThatNeverEndsEndsTheProcess(t *testing.T) {
	eachGPU(t, func(t *testing.T, b gpuBackend) {
		s := b.startFaulty(t, fmt.Sprintf("step:%d:hang", b.faultStep), "--step-timeout", "3s")
		s.runIntoFault(t, "the device has made no step for")
		require.Equal(t, 1, s.exit(t))
		require.Regexp(t, `(?m)^millrace: the device has made no step for `, s.log.String())
	})
}

// runProgram runs a command and returns its output.
func runProgram(path string, env []string, args ...string) (string, error) {
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestAFaultThatCannotBeReadIsNamed(t *testing.T) {
	eachGPU(t, func(t *testing.T, b gpuBackend) {
		path := b.program(t)
		for _, fault := range []string{"step", "step:0:lost", "step:1:explode", "step:x:lost", "step:1lost", "1:lost", "step:1+lost"} {
			args := append([]string{"generate", "--model", demoModel, "--prompt", "a", "-n", "1"}, b.flags...)
			out, err := runProgram(path, []string{b.faultVariable() + "=" + fault}, args...)
			require.Error(t, err, fault)
			require.Contains(t, out, fmt.Sprintf("%s is %q, expected step:N:KIND", b.faultVariable(), fault))
		}
	})
}
