package natsapi_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/apitest"
	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/auth"
)

func TestAKeyIsNeededInTheHeader(t *testing.T) {
	key, entry := auth.NewKey("acme")
	entry.RequestsPerMinute = 1
	line, err := entry.Line()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "keys.yaml")
	require.NoError(t, os.WriteFile(path, []byte(line), 0o600))
	keys, err := auth.Open(path)
	require.NoError(t, err)
	e := apitest.New(apitest.Say("a"))
	_, nc := startWith(t, e, auth.Guard(e), natsapi.Options{Keys: keys})

	ask := func(subject, header string) *nats.Msg {
		t.Helper()
		m := nats.NewMsg("millrace.v1." + subject)
		m.Data = []byte(hello + `}`)
		if header != "" {
			m.Header.Set(natsapi.HeaderKey, header)
		}
		reply, err := nc.RequestMsg(m, wait)
		require.NoError(t, err)
		return reply
	}
	for _, subject := range []string{"chat.completions", "completions", "tokenize", "detokenize", "models", "embeddings"} {
		for _, header := range []string{"", "Bearer " + key + "x", key} {
			m := ask(subject, header)
			require.Equal(t, "401", m.Header.Get(micro.ErrorCodeHeader), subject)
			require.Contains(t, string(m.Data), `"code":"invalid_api_key"`)
		}
	}
	require.Empty(t, e.Requests())
	m := ask("chat.completions", "Bearer "+key)
	require.Empty(t, m.Header.Get(micro.ErrorCodeHeader), string(m.Data))
	require.Equal(t, "acme", e.Requests()[0].Tenant)
	m = ask("chat.completions", "Bearer "+key)
	require.Equal(t, "429", m.Header.Get(micro.ErrorCodeHeader))
	require.Equal(t, "60", m.Header.Get(natsapi.HeaderRetryAfter))
}
