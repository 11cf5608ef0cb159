package main

import (
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/e2e/natstest"
)

func TestAKeysLimitHoldsForTwoGatewaysOfANATSServer(t *testing.T) {
	key, entry := auth.NewKey("acme")
	entry.Concurrent = 1
	line, err := entry.Line()
	require.NoError(t, err)
	path := secret(t, "keys.yaml", []byte(line))
	s := natstest.Start(t, nil)
	submit := func() func(id string) (api.Stream, error) { // a gateway
		x, err := openSecurity(&config.Security{APIKeys: path})
		require.NoError(t, err)
		stop, err := x.share(natstest.Connect(t, s), zerolog.Nop())
		require.NoError(t, err)
		t.Cleanup(stop)
		k, err := x.keys.Authenticate("Bearer " + key)
		require.NoError(t, err)
		engine, ctx := x.guard(apitest.New(apitest.Say("a"))), api.WithCaller(t.Context(), k)
		return func(id string) (api.Stream, error) {
			return engine.Submit(ctx, &api.Request{ID: id, Model: "tiny-chat", N: 1, PromptTokens: []int32{1}, MaxTokens: 1})
		}
	}
	a, b := submit(), submit()
	runs, err := a("1")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		other, err := b("2")
		if err == nil {
			other.Close() // before it received the use of the first
			return false
		}
		e, ok := errors.AsType[*api.Error](err)
		return ok && e.Reason == auth.ReasonConcurrent
	}, 20*time.Second, 10*time.Millisecond)
	runs.Close()
	require.Eventually(t, func() bool {
		other, err := b("3")
		if err == nil {
			other.Close()
		}
		return err == nil
	}, 20*time.Second, 10*time.Millisecond)
}
