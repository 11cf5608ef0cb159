package objects

import (
	"context"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/e2e/natstest"
)

// A NATS server does not acknowledge a message that it could not write, such as one for a full disk.
func TestAnUploadThatNATSDoesNotAcknowledgeIsRefusedSoon(t *testing.T) {
	nc := natstest.Connect(t, natstest.Start(t, &natsserver.Options{JetStream: true}))
	s, err := Open(t.Context(), nc, Options{Bucket: "FILES", Noun: "file", Keep: time.Hour, MaxBytes: 1 << 20})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	_, err = s.Put(t.Context(), "red", "file-1", nil, time.Time{}, strings.NewReader("one"))
	require.NoError(t, err)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "OBJ_FILES")
	require.NoError(t, err)
	config := stream.CachedInfo().Config
	config.NoAck = true
	_, err = js.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	const late = 6 * timeout
	ctx, cancel := context.WithTimeout(t.Context(), late)
	defer cancel()
	_, err = s.Put(ctx, "red", "file-2", nil, time.Time{}, strings.NewReader("two"))
	require.NoError(t, ctx.Err(), "the error comes before the deadline")
	var refused *api.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "files_unavailable", refused.Reason)
}
