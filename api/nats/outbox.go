package natsapi

import (
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
)

// errNoInbox refuses a reply subject that is not an inbox.
var errNoInbox = errors.New("natsapi: the reply subject is not an inbox: expected _INBOX. and tokens without wildcards")

// inbox is a subject that answers may go to. Only toInbox creates one.
type inbox struct{ subject string }

// toInbox returns a reply subject as an inbox, or an error if it is not one.
func toInbox(reply string) (inbox, error) {
	if !isInbox(reply) {
		return inbox{}, errNoInbox
	}
	return inbox{reply}, nil
}

// outbox publishes all messages of this package, and only to inboxes. A client chooses the reply
// subject, and our connection may publish to subjects that the client may not. A reply subject that
// names a log, a node or an API of JetStream would be a write with our permissions.
type outbox struct{ nc *nats.Conn }

func (o outbox) send(to inbox, m *nats.Msg) error {
	if to.subject == "" {
		return errNoInbox
	}
	m.Subject = to.subject
	return o.nc.PublishMsg(m)
}

// respond answers a message whose reply subject is an inbox.
func (o outbox) respond(request, m *nats.Msg) error {
	to, err := toInbox(request.Reply)
	if err != nil {
		return err
	}
	return o.send(to, m)
}

// isInbox reports whether a subject begins with the token _INBOX and has at least one more token, but
// no wildcard and no empty token.
func isInbox(subject string) bool {
	rest, ok := strings.CutPrefix(subject, nats.InboxPrefix)
	if !ok || strings.ContainsAny(rest, " \t\r\n\f*>") {
		return false
	}
	for token := range strings.SplitSeq(rest, ".") {
		if token == "" {
			return false
		}
	}
	return true
}
