package client

import (
	"encoding/hex"
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
)

// KeyInboxes is the prefix of the inboxes of API keys, which are KeyInboxes.ID.>. On a server with API
// keys only connections that present a key may read its inboxes.
const KeyInboxes = "_INBOX.key"

// InboxPrefix returns the prefix of the inboxes of an API key, for nats.CustomInboxPrefix. It contains the
// key's id, not its secret. For a text that is not an API key it is "_INBOX".
func InboxPrefix(key string) string {
	rest, ok := strings.CutPrefix(key, "mr-")
	id, secret, whole := strings.Cut(rest, "-")
	if _, err := hex.DecodeString(id); !ok || !whole || err != nil || id == "" || secret == "" {
		return strings.TrimSuffix(nats.InboxPrefix, ".")
	}
	return KeyInboxes + "." + id
}

// ConnectNATS connects to NATS with an API key, or without one for "". Unless the URL or the options have a
// login of their own, the key is the connection's token: Millrace's embedded server then hides the answers
// from other clients. If the server refuses the token, ConnectNATS connects without one.
// The key may also be the token in the URL (nats://KEY@HOST).
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

// withInbox adds the inbox prefix of a key, unless the options have one.
func withInbox(key string, options []nats.Option) []nats.Option {
	prefix := InboxPrefix(key)
	if !strings.HasPrefix(prefix, KeyInboxes) || applied(options).InboxPrefix != "" {
		return options
	}
	return append(slices.Clip(options), nats.CustomInboxPrefix(prefix))
}

// urlLogin returns the token in the first URL with a user: "" if the user has a password. ok is false if no
// URL has a user.
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

// applied returns the result of the options. nats.Connect reports their errors.
func applied(options []nats.Option) nats.Options {
	o := nats.GetDefaultOptions()
	for _, option := range options {
		if option != nil {
			option(&o) //nolint:errcheck // as above
		}
	}
	return o
}

// hasLogin reports whether the options have a login of any kind.
func hasLogin(options []nats.Option) bool {
	o := applied(options)
	return o.User != "" || o.Password != "" || o.UserInfo != nil || o.Token != "" || o.TokenHandler != nil || o.Nkey != "" ||
		o.UserJWT != nil
}
