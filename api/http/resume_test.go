package httpapi_test

import (
	"net/http"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/call"
	httpapi "github.com/millrace/millrace/api/http"
	"github.com/millrace/millrace/durable/calls"
	"github.com/millrace/millrace/e2e/natstest"
)

// TestWithoutRoomForALogACallRunsWithoutOne, unless it insists.
func TestWithoutRoomForALogACallRunsWithoutOne(t *testing.T) {
	nc, err := nats.Connect(natstest.Start(t, &server.Options{JetStream: true}).ClientURL())
	require.NoError(t, err)
	defer nc.Close()
	e := apitest.New(apitest.Say("a", "b"))
	kept, err := calls.New(nc, call.NewDirect(e), calls.Options{MaxBytes: 500})
	require.NoError(t, err)
	defer kept.Close()
	srv := serve(t, e, httpapi.Options{Calls: kept})

	resp := post(t, srv, "/v1/completions", `{"prompt":"x","stream":true,"stream_resume":"auto"}`)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Empty(t, resp.Header.Get("Millrace-Id"), "it says that nobody can come back")
	require.Contains(t, read(t, resp), "[DONE]")

	resp = post(t, srv, "/v1/completions", `{"prompt":"x","stream":true,"stream_resume":true}`)
	require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	require.Contains(t, read(t, resp), "stream_logs_full")
}
