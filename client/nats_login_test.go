package client_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/e2e/natstest"
)

const apiKey = "mr-0123456789ab-secret"

func TestAnInboxPrefixHasTheKeysIDAndNoSecret(t *testing.T) {
	require.Equal(t, "_INBOX.key.0123456789ab", client.InboxPrefix(apiKey))
	for _, none := range []string{"", "x", "mr-", "mr-0123456789ab", "mr-0123456789ab-", "mr--x", "mr->-x", "mr-*-x", "mr-a.b-x",
		"MR-0123456789ab-x"} {
		require.Equal(t, "_INBOX", client.InboxPrefix(none), none)
	}
}

// TestAnAPIKeyIsALoginOnlyWhereThereIsNoOther keeps a user of the URL or of the options.
func TestAnAPIKeyIsALoginOnlyWhereThereIsNoOther(t *testing.T) {
	users := natstest.Start(t, &server.Options{Username: "user", Password: "password"}).ClientURL()
	token := natstest.Start(t, &server.Options{Authorization: apiKey}).ClientURL()
	open := natstest.Start(t, nil).ClientURL()
	as := func(url, login string) string { return strings.Replace(url, "://", "://"+login+"@", 1) }
	for _, c := range []struct {
		url, key, inbox string
		options         []nats.Option
	}{
		{url: as(users, "user:password"), key: apiKey, inbox: "_INBOX."},
		{url: users, key: apiKey, inbox: "_INBOX.", options: []nats.Option{nats.UserInfo("user", "password")}},
		{url: token, key: apiKey, inbox: "_INBOX.key.0123456789ab."},
		{url: as(token, apiKey), inbox: "_INBOX.key.0123456789ab."},
		{url: token, key: apiKey, inbox: "mine.", options: []nats.Option{nats.CustomInboxPrefix("mine")}},
		{url: open, key: apiKey, inbox: "_INBOX.key.0123456789ab."},
		{url: open, key: "not an API key", inbox: "_INBOX."},
		{url: open, inbox: "_INBOX."},
	} {
		nc, err := client.ConnectNATS(c.url, c.key, c.options...)
		require.NoError(t, err, "%+v", c)
		inbox := nc.NewRespInbox()
		require.True(t, strings.HasPrefix(inbox, c.inbox), "%s: %+v", inbox, c)
		nc.Close()
	}
	_, err := client.ConnectNATS(users, apiKey)
	require.ErrorIs(t, err, nats.ErrAuthorization)
}
