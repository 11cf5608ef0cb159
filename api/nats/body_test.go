package natsapi_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/apitest"
	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/e2e/natstest"
)

// asker sends requests with an API key.
type asker struct {
	t   *testing.T
	nc  *nats.Conn
	key string
}

func (a asker) ask(subject string, body []byte, headers ...string) *nats.Msg {
	a.t.Helper()
	m := nats.NewMsg(subject)
	m.Data = body
	m.Header.Set(natsapi.HeaderKey, "Bearer "+a.key)
	for i := 0; i < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	answer, err := a.nc.RequestMsg(m, wait)
	require.NoError(a.t, err)
	return answer
}

type uploading struct {
	ID, Subjects string
	Part         int
}

func (a asker) open(size int) (u uploading, answer *nats.Msg) {
	a.t.Helper()
	answer = a.ask("millrace.v1.bodies.open", fmt.Appendf(nil, `{"size":%d}`, size))
	require.NoError(a.t, json.Unmarshal(answer.Data, &u))
	return u, answer
}

func (a asker) part(u uploading, offset int, data []byte) *nats.Msg {
	a.t.Helper()
	return a.ask(u.Subjects+"bodies.part", data, natsapi.HeaderBody, u.ID, natsapi.HeaderPart, strconv.Itoa(offset))
}

// TestABodyInPartsIsItsKeysOwn: no other key reads, continues or uses it, and it counts against
// the key that sent it.
func TestABodyInPartsIsItsKeysOwn(t *testing.T) {
	var keys []string
	var file strings.Builder
	for _, tenant := range []string{"acme", "other"} {
		key, entry := auth.NewKey(tenant)
		line, err := entry.Line()
		require.NoError(t, err)
		keys = append(keys, key)
		file.WriteString(line)
	}
	path := filepath.Join(t.TempDir(), "keys.yaml")
	require.NoError(t, os.WriteFile(path, []byte(file.String()), 0o600))
	ring, err := auth.Open(path)
	require.NoError(t, err)
	e := apitest.New(apitest.Say("yes"))
	const limit = 100_000
	_, nc := startWith(t, e, auth.Guard(e), natsapi.Options{Keys: ring, MaxBody: limit})
	mine, other, nobody := asker{t, nc, keys[0]}, asker{t, nc, keys[1]}, asker{t, nc, "wrong"}

	body := []byte(hello + `,"user":"` + strings.Repeat("u", 90_000) + `"}`)
	_, m := nobody.open(len(body))
	requireError(t, m, 401, "invalid_api_key")
	_, m = mine.open(limit + 1)
	requireError(t, m, 413, "request_too_large")
	for _, junk := range []string{"", "junk", `{"size":0}`, `{"size":-1}`, `{"size":1e99}`, `{}`} {
		requireError(t, mine.ask("millrace.v1.bodies.open", []byte(junk)), 400, "invalid_value")
	}
	u, _ := mine.open(len(body))
	require.NotEmpty(t, u.ID)
	chat := u.Subjects + "chat.completions"
	first, rest := body[:u.Part], body[u.Part:]
	requireError(t, other.part(u, 0, first), 404, "body_not_found")
	require.Empty(t, mine.part(u, 0, first).Header.Get(micro.ErrorCodeHeader))
	requireError(t, mine.ask(chat, nil, natsapi.HeaderBody, u.ID), 400, "invalid_value")
	requireError(t, other.part(u, u.Part, rest), 404, "body_not_found")
	require.Empty(t, mine.part(u, u.Part, rest).Header.Get(micro.ErrorCodeHeader))
	requireError(t, other.ask(chat, nil, natsapi.HeaderBody, u.ID), 404, "body_not_found")
	requireError(t, nobody.ask(chat, nil, natsapi.HeaderBody, u.ID), 401, "invalid_api_key")
	require.Contains(t, string(mine.ask(chat, nil, natsapi.HeaderBody, u.ID).Data), `"content":"yes"`)
	requireError(t, mine.ask(chat, nil, natsapi.HeaderBody, u.ID), 404, "body_not_found")
	require.Equal(t, "acme", e.Requests()[0].Tenant)

	u, _ = mine.open(10)
	requireError(t, mine.ask(u.Subjects+"bodies.part", []byte("x"), natsapi.HeaderBody, u.ID, natsapi.HeaderPart, "x"), 400,
		"invalid_value")
	requireError(t, mine.part(u, 5, []byte("x")), 400, "invalid_value")
	requireError(t, mine.part(u, 0, []byte("x")), 404, "body_not_found") // dropped

	for range 8 {
		_, m = mine.open(limit)
		require.Empty(t, m.Header.Get(micro.ErrorCodeHeader))
	}
	_, m = mine.open(1)
	requireError(t, m, 429, "bodies_full")
	require.Equal(t, "1", m.Header.Get(natsapi.HeaderRetryAfter))
	_, m = other.open(limit)
	require.Empty(t, m.Header.Get(micro.ErrorCodeHeader), "its share is another")
}

func TestAnAnswerAboveAMessagesSizeComesInParts(t *testing.T) {
	text := strings.Repeat("0123456789", 20_000)
	for _, most := range []int32{64 << 10, 5000, 1024} { // below the room for headers, too
		t.Run(strconv.Itoa(int(most)), func(t *testing.T) {
			srv := natstest.Start(t, &server.Options{MaxPayload: most})
			s, err := natsapi.Start(natstest.Connect(t, srv), apitest.New(apitest.Say(text)), natsapi.Options{})
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Stop(t.Context())) }()
			nc := natstest.Connect(t, srv)
			inbox := nats.NewInbox()
			sub, err := nc.SubscribeSync(inbox)
			require.NoError(t, err)
			m := nats.NewMsg("millrace.v1.completions")
			m.Reply, m.Data = inbox, []byte(`{"prompt":"x"}`)
			m.Header.Set(natsapi.HeaderAccept, "parts")
			require.NoError(t, nc.PublishMsg(m))
			var whole []byte
			for i := 1; ; i++ {
				m := next(t, sub)
				whole = append(whole, m.Data...)
				number, of, _ := strings.Cut(m.Header.Get(natsapi.HeaderPart), "/")
				require.Equal(t, strconv.Itoa(i), number)
				if number == of {
					break
				}
			}
			require.True(t, json.Valid(whole))
			require.Contains(t, string(whole), text)
		})
	}
}
