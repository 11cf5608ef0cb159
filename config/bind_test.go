package config_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/config"
)

// run executes "millrace serve args..." with the environment env in a fresh
// working directory that holds millrace.yaml with the given text.
func run(t *testing.T, yaml string, env []string, args ...string) (*config.Serve, error) {
	t.Helper()
	t.Chdir(t.TempDir())
	if yaml != "" {
		require.NoError(t, os.WriteFile(config.DefaultFile, []byte(yaml), 0o600))
	}

	s := new(config.Serve)
	root := &cobra.Command{Use: "millrace", SilenceUsage: true, SilenceErrors: true}
	root.PersistentFlags().String(config.FileFlag, "", "")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return config.Bind(cmd, env) }
	serve := &cobra.Command{Use: "serve", RunE: func(*cobra.Command, []string) error { return nil }}
	s.Register(serve.Flags())
	other := &cobra.Command{Use: "bench", RunE: serve.RunE}
	other.Flags().Int("gen", 0, "")
	root.AddCommand(serve, other)
	root.SetArgs(append([]string{"serve"}, args...))
	err := root.Execute()
	return s, err
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
	_, err := run(t, "gen: 5\n", []string{"MILLRACE_GEN=6", "MILLRACE_ONEDNN=/opt/onednn", "MILLRACE_THREADS="})
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
		{name: "removed key", yaml: "max-hold-steps: 4\n",
			want: `millrace.yaml:1: unknown key "max-hold-steps": removed: --waiting-served-ratio holds a prompt back for at most 16 steps; leave this setting out`},
		{name: "removed variable", env: []string{"MILLRACE_NO_OVERLAP=true"},
			want: `unknown environment variable MILLRACE_NO_OVERLAP: removed: detokenizing always overlaps with the next step; leave this setting out`},
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
	return []string{service + "_SERVICE_HOST=10.0.0.1", service + "_SERVICE_PORT=8080", service + "_SERVICE_PORT_HTTP=8080", service + "_SERVICE_PORT_NATS_TLS=4222",
		service + "_PORT=tcp://10.0.0.1:8080", service + "_PORT_8080_TCP=tcp://10.0.0.1:8080", service + "_PORT_8080_TCP_PROTO=tcp",
		service + "_PORT_8080_TCP_PORT=8080", service + "_PORT_8080_TCP_ADDR=10.0.0.1", service + "_PORT_4222_UDP=udp://10.0.0.1:4222"}
}

// TestVariablesOfKubernetesServicesAreNoSettings: services named millrace, millrace-nats and so on.
func TestVariablesOfKubernetesServicesAreNoSettings(t *testing.T) {
	for _, service := range []string{"MILLRACE", "MILLRACE_NATS", "MILLRACE_GATEWAY", "MILLRACE_LISTEN", "MILLRACE_MY_SERVICE", "MILLRACE_PORT_1_TCP"} {
		s, err := run(t, "", append(kubernetes(service), "MILLRACE_THREADS=2"))
		require.NoError(t, err, service)
		require.Equal(t, serve(t, "--threads", "2"), s, service)
	}
	_, err := run(t, "", append(kubernetes("MILLRACE"), "MILLRACE_KV_MEMROY=2GiB"))
	require.EqualError(t, err, "unknown environment variable MILLRACE_KV_MEMROY; did you mean MILLRACE_KV_MEMORY?")
	for _, lone := range []string{"MILLRACE_PORT=8080", "MILLRACE_SERVICE_HOST=x", "MILLRACE_NATS_PORT=4222", "MILLRACE_NATS_GATEWY=secret"} {
		_, err := run(t, "", append(kubernetes("MILLRACE_GATEWAY"), lone))
		require.ErrorContains(t, err, "unknown environment variable", lone)
	}
}
