package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/config"
)

// run executes "millrace serve args..." with the environment env in a fresh
// working directory that holds millrace.yaml with the given text, which is named unless env names another file.
func run(t *testing.T, yaml string, env []string, args ...string) (*config.Serve, error) {
	t.Helper()
	t.Chdir(t.TempDir())
	if yaml != "" {
		require.NoError(t, os.WriteFile(config.FileName, []byte(yaml), 0o600))
		env = append([]string{"MILLRACE_CONFIG=" + config.FileName}, env...)
	}
	s, _, err := bind(env, args...)
	return s, err
}

// bind executes "millrace serve args..." with the environment env, and returns what it prints, too.
func bind(env []string, args ...string) (s *config.Serve, printed string, err error) {
	var out strings.Builder
	s = new(config.Serve)
	root := &cobra.Command{Use: "millrace", SilenceUsage: true, SilenceErrors: true}
	root.PersistentFlags().String(config.FileFlag, "", "")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return config.Bind(cmd, env) }
	serve := &cobra.Command{Use: "serve", RunE: func(*cobra.Command, []string) error { return nil }}
	s.Register(serve.Flags())
	other := &cobra.Command{Use: "bench", RunE: serve.RunE}
	other.Flags().Int("gen", 0, "")
	root.AddCommand(serve, other)
	root.SetArgs(append([]string{"serve"}, args...))
	root.SetErr(&out)
	err = root.Execute()
	return s, out.String(), err
}

// inHome writes the user's file of settings into a home, and returns its path.
func inHome(t *testing.T, home, yaml string) string {
	t.Helper()
	path := filepath.Join(home, ".config", "millrace", config.FileName)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(yaml), 0o600))
	return path
}

func TestTheFileOfTheUserIsReadWithoutBeingNamed(t *testing.T) {
	t.Chdir(t.TempDir())
	home, other := t.TempDir(), t.TempDir()
	inHome(t, home, "threads: 3\n")
	s, printed, err := bind([]string{"HOME=" + home})
	require.NoError(t, err)
	require.Equal(t, 3, s.Threads)
	require.Empty(t, printed)

	s, _, err = bind([]string{"HOME=" + home, "XDG_CONFIG_HOME=" + other})
	require.NoError(t, err)
	require.Zero(t, s.Threads, "settings are in the other folder")

	s, _, err = bind([]string{"HOME=" + other, "XDG_CONFIG_HOME=" + filepath.Join(home, ".config")})
	require.NoError(t, err)
	require.Equal(t, 3, s.Threads)

	path := inHome(t, home, "thread: 3\n")
	_, _, err = bind([]string{"HOME=" + home})
	require.ErrorIs(t, err, config.ErrUsage)
	require.EqualError(t, err, path+`:1: unknown key "thread"; did you mean threads?`)
}

// TestAFileInTheWorkingDirectoryIsNotRead: whoever made a folder does not decide what a server that is started there does.
func TestAFileInTheWorkingDirectoryIsNotRead(t *testing.T) {
	for _, env := range [][]string{{"HOME=" + t.TempDir()}, {"HOME=/"}, nil} {
		t.Chdir(t.TempDir())
		require.NoError(t, os.WriteFile(config.FileName, []byte("threads: 3\nunknown: 1\n"), 0o600))
		s, printed, err := bind(env)
		require.NoError(t, err)
		require.Zero(t, s.Threads)
		require.Equal(t, "millrace.yaml: found in this folder, and not read; --config millrace.yaml reads it\n", printed)
	}

	home := t.TempDir()
	t.Chdir(filepath.Dir(inHome(t, home, "threads: 3\n")))
	s, printed, err := bind([]string{"HOME=" + home})
	require.NoError(t, err)
	require.Equal(t, 3, s.Threads)
	require.Empty(t, printed, "it is the user's file")
}

func TestAHomeThatCannotBeReadHasNoSettings(t *testing.T) {
	t.Chdir(t.TempDir())
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, printed, err := bind([]string{"HOME=" + file})
	require.NoError(t, err)
	require.Contains(t, printed, "not a directory: no settings are read from it")
	_, printed, err = bind(nil)
	require.NoError(t, err)
	require.Empty(t, printed)
}

func TestAFlagWinsOverTheEnvironmentAndTheEnvironmentOverTheFile(t *testing.T) {
	yaml := "listen: 127.0.0.1:3\nthreads: 3\ngrace: 3s\nkv-memory: 3MiB\n"
	env := []string{"MILLRACE_LISTEN=127.0.0.1:2", "MILLRACE_THREADS=2", "HOME=/nowhere"}
	s, err := run(t, yaml, env, "--listen", "127.0.0.1:1")
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:1", s.Listen)
	require.Equal(t, 2, s.Threads)
	require.Equal(t, 3*time.Second, s.Grace)
	require.Equal(t, config.Bytes(3<<20), s.KVMemory)
	require.Equal(t, "127.0.0.1:4222", s.NATSListen, "what nothing sets keeps its default")
}

func TestAFlagGivenAsItsDefaultStillWins(t *testing.T) {
	s, err := run(t, "threads: 3\n", []string{"MILLRACE_THREADS=2"}, "--threads", "0")
	require.NoError(t, err)
	require.Equal(t, 0, s.Threads)
}

func TestTheEnvironmentMayNameTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "other.yaml")
	require.NoError(t, os.WriteFile(path, []byte("threads: 7\n"), 0o600))
	s, err := run(t, "threads: 3\n", []string{"MILLRACE_CONFIG=" + path})
	require.NoError(t, err)
	require.Equal(t, 7, s.Threads)
}

func TestSettingsOfOtherCommandsArePassedOver(t *testing.T) {
	_, err := run(t, "gen: 5\n", []string{"MILLRACE_GEN=6", "MILLRACE_ONEDNN=/opt/onednn", "MILLRACE_CUDA_EMULATOR_DEVICES=2",
		"MILLRACE_THREADS="})
	require.NoError(t, err)
}

func TestBadConfigurationIsAUsageErrorThatNamesTheFault(t *testing.T) {
	tests := []struct {
		name, yaml, want string
		env, args        []string
	}{
		{name: "unknown key", yaml: "\nkv_memory: 2GiB\n",
			want: `millrace.yaml:2: unknown key "kv_memory"; did you mean kv-memory?`},
		{name: "unknown variable", env: []string{"MILLRACE_LISTN=:80"},
			want: `unknown environment variable MILLRACE_LISTN; did you mean MILLRACE_LISTEN?`},
		{name: "wrong type in the file", yaml: "threads: many\n",
			want: `millrace.yaml:1: threads: "many": strconv.ParseInt: parsing "many": invalid syntax`},
		{name: "wrong type in the environment", env: []string{"MILLRACE_KV_MEMORY=2 potatoes"},
			want: `MILLRACE_KV_MEMORY: "2 potatoes": expected an amount like "2GiB" or "512MiB"`},
		{name: "a mapping where a scalar belongs", yaml: "listen:\n  host: a\n",
			want: "millrace.yaml:1: listen: found a mapping, expected a scalar"},
		{name: "no value", yaml: "listen:\n", want: "millrace.yaml:1: listen: no value; leave the key out for the default"},
		{name: "not a mapping", yaml: "- listen\n", want: "millrace.yaml:1: found a list, expected a mapping of settings"},
		{name: "set twice", yaml: "threads: 1\nthreads: 2\n", want: "millrace.yaml:2: threads: set twice"},
		{name: "a file that names a file", yaml: "config: b.yaml\n",
			want: "millrace.yaml:1: config: a configuration file cannot name another one"},
		{name: "a named file that is not there", args: []string{"--config", "none.yaml"},
			want: "open none.yaml: no such file or directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := run(t, tt.yaml, tt.env, tt.args...)
			require.ErrorIs(t, err, config.ErrUsage)
			require.EqualError(t, err, tt.want)
		})
	}
}

// kubernetes is what a pod gets for a service with two ports.
func kubernetes(service string) []string {
	return []string{service + "_SERVICE_HOST=10.0.0.1", service + "_SERVICE_PORT=8080", service + "_SERVICE_PORT_HTTP=8080",
		service + "_SERVICE_PORT_NATS_TLS=4222",
		service + "_PORT=tcp://10.0.0.1:8080", service + "_PORT_8080_TCP=tcp://10.0.0.1:8080", service + "_PORT_8080_TCP_PROTO=tcp",
		service + "_PORT_8080_TCP_PORT=8080", service + "_PORT_8080_TCP_ADDR=10.0.0.1", service + "_PORT_4222_UDP=udp://10.0.0.1:4222"}
}

// TestVariablesOfKubernetesServicesAreNoSettings: services named millrace, millrace-nats and so on.
func TestVariablesOfKubernetesServicesAreNoSettings(t *testing.T) {
	for _, service := range []string{"MILLRACE", "MILLRACE_NATS", "MILLRACE_GATEWAY", "MILLRACE_LISTEN", "MILLRACE_MY_SERVICE",
		"MILLRACE_PORT_1_TCP"} {
		s, err := run(t, "", append(kubernetes(service), "MILLRACE_THREADS=2"))
		require.NoError(t, err, service)
		require.Equal(t, serve(t, "--threads", "2"), s, service)
	}
	_, err := run(t, "", append(kubernetes("MILLRACE"), "MILLRACE_KV_MEMROY=2GiB"))
	require.EqualError(t, err, "unknown environment variable MILLRACE_KV_MEMROY; did you mean MILLRACE_KV_MEMORY?")
	for _, lone := range []string{"MILLRACE_PORT=8080", "MILLRACE_SERVICE_HOST=x", "MILLRACE_NATS_PORT=4222",
		"MILLRACE_NATS_GATEWY=secret"} {
		_, err := run(t, "", append(kubernetes("MILLRACE_GATEWAY"), lone))
		require.ErrorContains(t, err, "unknown environment variable", lone)
	}
}
