package natsapi_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/auth"
)

// TestOneTenantsRequestsLeavePlacesForAnother fills the service with requests that never end.
func TestOneTenantsRequestsLeavePlacesForAnother(t *testing.T) {
	path, keys := filepath.Join(t.TempDir(), "keys.yaml"), map[string]string{}
	var lines []byte
	for _, tenant := range []string{"evil", "acme"} {
		key, entry := auth.NewKey(tenant)
		line, err := entry.Line()
		require.NoError(t, err)
		keys[tenant], lines = key, append(lines, line...)
	}
	require.NoError(t, os.WriteFile(path, lines, 0o600))
	ring, err := auth.Open(path)
	require.NoError(t, err)
	e := apitest.New(func(r *api.Request, s *apitest.Stream) {
		if r.Tenant == "evil" {
			<-s.Closed()
			return
		}
		apitest.Say("a")(r, s)
	})
	const places = 8
	_, nc := startWith(t, e, auth.Guard(e), natsapi.Options{Keys: ring, Tenants: ring.Tenants, MaxRequests: places})
	ask := func(tenant, stream string) *nats.Msg {
		t.Helper()
		m := nats.NewMsg("millrace.v1.chat.completions")
		m.Data = []byte(hello + stream + `}`)
		m.Header.Set(natsapi.HeaderKey, "Bearer "+keys[tenant])
		reply, err := nc.RequestMsg(m, wait)
		require.NoError(t, err)
		return reply
	}
	accepted := 0
	for range 2 * places {
		if ask("evil", `,"stream":true`).Header.Get(micro.ErrorCodeHeader) == "" {
			accepted++
		}
	}
	require.LessOrEqual(t, accepted, places*3/4)
	for range 3 {
		require.Empty(t, ask("acme", "").Header.Get(micro.ErrorCodeHeader))
	}
}
