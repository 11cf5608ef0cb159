package client_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/e2e/natstest"
	"github.com/millrace/millrace/metrics/metricstest"
)

// TestStreamsOutliveARestartOfNATS loses the logs while the engine waits. Each client loses its
// connection and requests its stream from a gateway that does not know the call, before the gateway
// that runs the call has reconnected.
func TestStreamsOutliveARestartOfNATS(t *testing.T) {
	t.Parallel() // it waits most of its time
	const at, each = 20, 4
	const soon, late = 10 * time.Millisecond, 4 * time.Second
	back := func(after time.Duration) []nats.Option {
		return []nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(after), nats.ReconnectJitter(0, 0)}
	}
	hold := make(chan struct{})
	e := counting(at, hold)
	srv := jetStream(t)
	url := srv.ClientURL()

	held, answers := make(chan struct{}, 2*each), make(chan string, 2*each)
	read := func(c client.Client) {
		var text strings.Builder
		chunks := 0
		for chunk, err := range c.ChatStream(t.Context(), hi) {
			if err != nil {
				answers <- err.Error()
				return
			}
			chunks++
			for _, ch := range chunk.Choices {
				text.WriteString(ch.Content())
				if ch.Content() == fmt.Sprintf("%d ", at-1) {
					held <- struct{}{}
				}
			}
		}
		answers <- fmt.Sprintf("%d: %s", chunks, text.String())
	}
	begin := func(c client.Client) {
		for range each {
			go read(c)
		}
		for range each {
			<-held
		}
	}

	a := newGateway(t, url, e, back(late)...)
	nc, err := nats.Connect(url, back(soon)...)
	require.NoError(t, err)
	defer nc.Close()
	overNATS, err := client.NewNATS(nc)
	require.NoError(t, err)
	begin(overNATS) // at a, before b starts
	b := newGateway(t, url, e, back(soon)...)
	overHTTP, err := client.NewHTTP(a.http.URL, client.WithServers(b.http.URL))
	require.NoError(t, err)
	defer overHTTP.Close()
	begin(overHTTP)

	natstest.Restart(t, srv)
	a.http.Listener.Close()
	a.http.CloseClientConnections()
	require.Eventually(t, func() bool {
		return metricstest.Sum(t, a.kept, "millrace_resume_rewritten_total") == 2*each
	}, 20*time.Second, 10*time.Millisecond)
	close(hold)
	for range 2 * each {
		require.Equal(t, fmt.Sprintf("%d: %s", 1+tokens+2, whole()), <-answers)
	}
	require.Len(t, e.Requests(), 2*each, "each ran once")
}
