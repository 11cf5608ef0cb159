package client

import (
	"encoding/hex"
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
)

// KeyInboxes is before the inboxes of API keys: KeyInboxes.ID.>. On a server with API keys no
// connection may read those of a key but the ones that show it.
const KeyInboxes = "_INBOX.key"

// InboxPrefix is the prefix of the inboxes of an API key, for nats.CustomInboxPrefix; "_INBOX" of
// what is no API key. The key's id is in it, not its secret.
func InboxPrefix(key string) string {
	rest, ok := strings.CutPrefix(key, "mr-")
	id, secret, whole := strings.Cut(rest, "-")
	if _, err := hex.DecodeString(id); !ok || !whole || err != nil || id == "" || secret == "" {
		return strings.TrimSuffix(nats.InboxPrefix, ".")
	}
	return KeyInboxes + "." + id
}

// ConnectNATS connects to NATS with an API key, "" for none. Unless the URL or the options have a login
// of their own, the key is the connection's token: Millrace's embedded server then keeps the answers from
// other clients. A server that does not know API keys gets a connection without a token.
// A key that is the token in the URL already (nats://KEY@HOST) counts as well.
func ConnectNATS(urls, key string, options ...nats.Option) (*nats.Conn, error) {
	if token, ok := urlLogin(urls); ok {
		return nats.Connect(urls, withInbox(token, options)...)
	}
	if key == "" || hasLogin(options) {
		return nats.Connect(urls, options...)
	}
	nc, err := nats.Connect(urls, append(withInbox(key, options), nats.Token(key))...)
	if errors.Is(err, nats.ErrAuthorization) {
		return nats.Connect(urls, options...)
	}
	return nc, err
}

// withInbox adds a key's inbox prefix, unless the options have one.
func withInbox(key string, options []nats.Option) []nats.Option {
	prefix := InboxPrefix(key)
	if !strings.HasPrefix(prefix, KeyInboxes) || applied(options).InboxPrefix != "" {
		return options
	}
	return append(slices.Clip(options), nats.CustomInboxPrefix(prefix))
}

// urlLogin is the token in the first URL that has a user; "" with a password or without a key.
func urlLogin(urls string) (token string, ok bool) {
	for text := range strings.SplitSeq(urls, ",") {
		u, err := url.Parse(strings.TrimSpace(text))
		if err != nil || u.User == nil {
			continue
		}
		if _, password := u.User.Password(); !password {
			token = u.User.Username()
		}
		return token, true
	}
	return "", false
}

// applied are options as nats.Connect will have them. What is wrong with one it says itself.
func applied(options []nats.Option) nats.Options {
	o := nats.GetDefaultOptions()
	for _, option := range options {
		if option != nil {
			option(&o) //nolint:errcheck // as above
		}
	}
	return o
}

func hasLogin(options []nats.Option) bool {
	o := applied(options)
	return o.User != "" || o.Password != "" || o.UserInfo != nil || o.Token != "" || o.TokenHandler != nil || o.Nkey != "" || o.UserJWT != nil
}
