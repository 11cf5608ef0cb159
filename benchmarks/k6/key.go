package main

import (
	neturl "net/url"
	"strings"

	"github.com/nats-io/nats.go"
)

// With API keys a server keeps the inboxes below keyInboxes and a key's id for connections whose
// token is the key. Each request carries the key in a header.
const (
	keyInboxes = "_INBOX.key."
	keyHeader  = "Authorization"
)

// apiKey is the API key in a NATS URL, nats://KEY@HOST; "" where there is none.
func apiKey(url string) string {
	u, err := neturl.Parse(url)
	if err != nil || u.User == nil {
		return ""
	}
	if key := u.User.Username(); keyID(key) != "" {
		return key
	}
	return ""
}

// keyID is the id of a key, mr-ID-SECRET; "" of what is none.
func keyID(key string) string {
	parts := strings.Split(key, "-")
	const hex = "0123456789abcdef"
	if len(parts) != 3 || parts[0] != "mr" || parts[2] == "" || strings.Trim(parts[1], hex) != "" {
		return ""
	}
	return parts[1]
}

// withoutKey is a URL fit for messages.
func withoutKey(url string) string {
	u, err := neturl.Parse(url)
	if err != nil || u.User == nil {
		return url
	}
	u.User = neturl.User("xxxxx")
	return u.String()
}

// message is a request to a server at a URL.
func message(url, subject string, payload []byte) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = payload
	if key := apiKey(url); key != "" {
		m.Header.Set(keyHeader, "Bearer "+key)
	}
	return m
}
