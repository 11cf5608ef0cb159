package client_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/e2e/natstest"
)

// TestAStreamThatIsLostWithNATSAndItsGatewayEndsWithACode kills the only NATS server and the gateway of a call together. The other gateway sends pings
// while it searches, and then a final error, to a resuming client of any kind.
func TestAStreamThatIsLostWithNATSAndItsGatewayEndsWithACode(t *testing.T) {
	t.Parallel() // it waits most of its time
	const at = 20
	back := []nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(10 * time.Millisecond), nats.ReconnectJitter(0, 0)}
	hold := make(chan struct{})
	e := counting(at, hold)
	srv := jetStream(t)
	a := newGateway(t, srv.ClientURL(), e, back...)
	nc, err := nats.Connect(srv.ClientURL(), back...)
	require.NoError(t, err)
	defer nc.Close()
	c, err := client.NewNATS(nc)
	require.NoError(t, err)
	ends := make(chan error, 1)
	begun := make(chan struct{}, 1)
	go func() {
		var last error
		for _, err := range c.ChatStream(t.Context(), hi) {
			if last = err; err == nil {
				select {
				case begun <- struct{}{}:
				default:
				}
			}
		}
		ends <- last
	}()
	<-begun
	newPingingGateway(t, srv.ClientURL(), e, 100*time.Millisecond, back...)
	a.kill()
	natstest.Restart(t, srv)

	inbox, err := nc.SubscribeSync(nats.NewInbox())
	require.NoError(t, err)
	pings, numbered := 0, ""
	for numbered == "" {
		require.NoError(t, nc.PublishRequest("millrace.v1.streams.resume", inbox.Subject, []byte(`{"id":"chatcmpl-gone","after":7}`)))
		for {
			m, err := inbox.NextMsg(20 * time.Second)
			if err != nil { // no responders yet
				break
			}
			if m.Header.Get("Millrace-Ping") != "" {
				pings++
				continue
			}
			var body struct{ Error struct{ Code string } }
			require.NoError(t, json.Unmarshal(m.Data, &body), string(m.Data))
			require.Equal(t, "stream_lost", body.Error.Code)
			require.Equal(t, "410", m.Header.Get("Nats-Service-Error-Code"))
			require.Equal(t, "error", m.Header.Get("Millrace-End"))
			numbered = m.Header.Get("Millrace-Seq")
			break
		}
	}
	require.Equal(t, "8", numbered)
	require.Positive(t, pings)

	var said *client.Error
	err = <-ends
	require.ErrorAs(t, err, &said)
	require.Equal(t, http.StatusGone, said.Status)
	require.Equal(t, "stream_lost", said.Code)
	close(hold)
}
