package client_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/e2e/natstest"
)

// TestAStreamThatIsLostWithNATSAndItsGatewayEndsWithACode kills the only NATS server and the gateway of a call together. The other gateway,
// which has read logs before, searches for it and then says that it is lost.
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
	newGateway(t, srv.ClientURL(), e, back...)
	a.kill()
	natstest.Restart(t, srv)

	var said *client.Error
	begin := time.Now()
	require.ErrorAs(t, <-ends, &said)
	require.Less(t, time.Since(begin), 30*time.Second, "no search after the first 10 s")
	require.Equal(t, http.StatusGone, said.Status)
	require.Equal(t, "stream_lost", said.Code)
	close(hold)
}
