package config_test

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/config"
)

func TestBytesReadsAmountsAsPeopleWriteThem(t *testing.T) {
	for text, want := range map[string]config.Bytes{
		"0": 0, "4097": 4097, "2GiB": 2 << 30, "2gib": 2 << 30, "2G": 2 << 30, "1.5 KiB": 1536,
		"3MB": 3_000_000, " 7 B ": 7, "1TiB": 1 << 40,
	} {
		var b config.Bytes
		require.NoError(t, b.Set(text), text)
		require.Equal(t, want, b, text)
	}
}

func TestBytesRefusesWhatIsNoAmount(t *testing.T) {
	for _, text := range []string{"", "GiB", "-1", "2QiB", "1e40", "NaN", "Inf", "9EiB", "16777216TiB", "1,5GB", "0x10"} {
		b := config.Bytes(11)
		require.Error(t, b.Set(text), text)
		require.Equal(t, config.Bytes(11), b, "%s: a refused amount changes nothing", text)
	}
}

func TestBytesPrintsWhatItReads(t *testing.T) {
	for _, text := range []string{"0", "1", "1023", "1KiB", "1537", "513MiB", "2GiB", "3TiB"} {
		var b config.Bytes
		require.NoError(t, b.Set(text))
		require.Equal(t, text, b.String())
	}
}

func serve(t *testing.T, args ...string) *config.Serve {
	t.Helper()
	var s config.Serve
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	s.Register(flags)
	require.NoError(t, flags.Parse(args))
	return &s
}

func TestServeDefaultsAreValid(t *testing.T) {
	require.NoError(t, serve(t).Validate())
}

func TestServeNamesEverySettingThatIsWrong(t *testing.T) {
	err := serve(t, "--backend", "gpu", "--threads", "-1", "--listen", "8080", "--nats-listen", "h:70000",
		"--max-batch-size", "0", "--grace", "-1s").Validate()
	require.ErrorIs(t, err, config.ErrUsage)
	require.EqualError(t, err, `--backend: found "gpu", expected cpu or ref or sycl or cuda or sim
--threads: found -1, expected at least 0
--listen: found "8080", expected HOST:PORT
--nats-listen: found "h:70000", expected HOST:PORT
--max-batch-size: found 0, expected at least 1
--grace: found -1s, expected at least 0s`)
}

func TestSecuritySettingsBelongTogether(t *testing.T) {
	for want, change := range map[string]func(*config.Serve){
		"":                         func(*config.Serve) {},
		"--nats-listen: 0.0.0.0:1": func(s *config.Serve) { s.NATSListen = "0.0.0.0:1" },
		"--nats-listen: :1":        func(s *config.Serve) { s.NATSListen = ":1" },
		"--tls-cert and --tls-key": func(s *config.Serve) { s.TLSCert = "x" },
		"--tls-client-ca":          func(s *config.Serve) { s.TLSClientCA = "x" },
		"--nats-auth-file":         func(s *config.Serve) { s.NATS, s.NATSAuthFile = "nats://x", "x" },
		"--nats-creds and --nats-nkey: expected one": func(s *config.Serve) { s.NATS, s.Creds, s.NKey = "nats://x", "x", "y" },
		"--nats-creds and --nats-nkey are for":       func(s *config.Serve) { s.Creds = "x" },
		"--nats-tls-cert and --nats-tls-key":         func(s *config.Serve) { s.Cert = "x" },
		"--nats-tls-ca":                              func(s *config.Serve) { s.CA = "x" },
	} {
		var s config.Serve
		s.Register(pflag.NewFlagSet("serve", pflag.ContinueOnError))
		change(&s)
		err := s.Validate()
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, config.ErrUsage, want)
		require.ErrorContains(t, err, want)
	}
	declared := serve(t, "--kv-spill", "x", "--admission", "declared").Validate()
	require.ErrorIs(t, declared, config.ErrUsage)
	require.ErrorContains(t, declared, "--admission predicted")
	for _, ok := range []func(*config.Serve){
		func(s *config.Serve) { s.NATSListen, s.NATSAuthFile = "0.0.0.0:1", "x" },
		func(s *config.Serve) { s.NATSListen, s.NATS = "0.0.0.0:1", "nats://x" },
		func(s *config.Serve) { s.NATSListen = "[::1]:1" },
		func(s *config.Serve) { s.NATSListen = "localhost:1" },
	} {
		var s config.Serve
		s.Register(pflag.NewFlagSet("serve", pflag.ContinueOnError))
		ok(&s)
		require.NoError(t, s.Validate())
	}
}

func TestAnOriginIsASchemeAndAHost(t *testing.T) {
	good := serve(t, "--cors-origin", "https://chat.example.com,http://localhost:*", "--cors-origin", "vscode-webview://*,null,*")
	require.Len(t, good.CORSOrigins, 5)
	require.NoError(t, good.Validate())
	for _, origin := range []string{"chat.example.com", "https://chat.example.com/", "https://a/b", "://a", "https://", "*://a",
		"https://*.*", "https://u@a", "true"} {
		err := serve(t, "--cors-origin", origin).Validate()
		require.ErrorIs(t, err, config.ErrUsage, origin)
		require.ErrorContains(t, err, "--cors-origin: found \""+origin+"\"")
	}
}

func TestKeysAndValuesThatLoseSomethingAreNotCopied(t *testing.T) {
	for _, lossy := range [][]string{{"--kv-eviction", "streaming:window=100"}, {"--kv-eviction", "h2o"}, {"--kv-type", "kivi"}} {
		require.NoError(t, serve(t, lossy...).Validate())
		for _, copies := range [][]string{{"--kv-spill", "x"}, {"--kv-disk", "x"},
			{"--roles", "prefill", "--nats", "nats://127.0.0.1:4222"}} {
			require.ErrorContains(t, serve(t, append(copies, lossy...)...).Validate(), "found "+lossy[0]+" "+lossy[1]+" with "+copies[0])
		}
	}
	require.ErrorContains(t, serve(t, "--kv-eviction", "snapkv").Validate(), `--kv-eviction: found "snapkv", expected none, streaming`)
}

func TestAGatewayWithoutKeysListensOnLoopbackOnly(t *testing.T) {
	refused := func(args ...string) {
		t.Helper()
		err := serve(t, args...).Validate()
		require.ErrorIs(t, err, config.ErrUsage)
		require.ErrorContains(t, err, "--api-keys FILE")
		require.ErrorContains(t, err, "--api-keys none")
		require.ErrorContains(t, err, "127.0.0.1:8080")
	}
	for _, public := range []string{"0.0.0.0:8080", ":8080", "[::]:8080", "192.0.2.1:8080", "example.com:8080"} {
		refused("--listen", public)
		refused("--listen", public, "--roles", "gateway", "--nats", "nats://x")
		require.NoError(t, serve(t, "--listen", public, "--api-keys", "keys.yaml").Validate())
		require.NoError(t, serve(t, "--listen", public, "--api-keys", "none").Validate())
		require.NoError(t, serve(t, "--listen", public, "--roles", "compute", "--nats", "nats://x").Validate())
	}
	for _, local := range []string{"127.0.0.1:0", "127.8.0.1:0", "[::1]:0", "localhost:0"} {
		require.NoError(t, serve(t, "--listen", local).Validate())
	}
}

func TestNoKeysIsNoFile(t *testing.T) {
	require.Empty(t, serve(t, "--api-keys", "none").KeysFile())
	require.Equal(t, "./none", serve(t, "--api-keys", "./none").KeysFile())
	require.True(t, serve(t).Local())
	require.False(t, serve(t, "--api-keys", "none").Local())
}

func TestToolParserIsAFormat(t *testing.T) {
	for _, name := range []string{"auto", "none", "hermes", "qwen3-xml+think"} {
		require.NoError(t, serve(t, "--tool-parser", name).Validate(), name)
	}
	err := serve(t, "--tool-parser", "qwen").Validate()
	require.ErrorIs(t, err, config.ErrUsage)
	require.ErrorContains(t, err, `--tool-parser: found "qwen", expected deepseek, `)
}
