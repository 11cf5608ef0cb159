package main

import (
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/client"
)

// seedFile is the file in --data-dir with the NKey seed of this server's nodes.
const seedFile = "nats-node.nk"

// natsAuth is the authentication of the embedded server with API keys. A connection is
//
//   - a node with the seed of --data-dir, in the nodes' account; on its other connection, by name, the
//     clients' side of a gateway;
//   - the client of an API key, when its token is the key: its answers come to inboxes that no
//     other connection may read;
//   - otherwise a client, when it shows no credentials at all. Clients of this kind share the rest of
//     the inboxes: NATS cannot keep a subscription to _INBOX.> from those of others.
type natsAuth struct {
	keys        *auth.Keyring
	node, front *server.User // of this process, and of nodes
	client      *server.User // whose permissions to publish clients have
	public      string       // NKey of nodes
	seed        string       // its file

	clients     *server.Account
	connections *connections
}

// attach takes the accounts of the server, which are not those of its options.
func (a *natsAuth) attach(s *server.Server, connections int) error {
	var errs []error
	for _, u := range []*server.User{a.node, a.front, a.client} {
		account, err := s.LookupAccount(u.Account.Name)
		errs = append(errs, err)
		u.Account = account
	}
	a.clients, a.connections = a.client.Account, newConnections(connections, a.keys.Tenants,
		func() ([]uint64, error) { return openConnections(s, connections) })
	return errors.Join(errs...)
}

func newNATSAuth(users []*server.User, keys *auth.Keyring, dataDir string) (*natsAuth, error) {
	a := &natsAuth{keys: keys, seed: filepath.Join(dataDir, seedFile)}
	for name, user := range map[string]**server.User{"node": &a.node, "front": &a.front, "client": &a.client} {
		i := slices.IndexFunc(users, func(u *server.User) bool { return u.Username == name })
		if i < 0 {
			return nil, fmt.Errorf("embedded NATS server: found no user %q in its configuration", name)
		}
		*user = users[i]
	}
	var err error
	if a.public, err = openSeed(a.seed); err != nil {
		return nil, fmt.Errorf("embedded NATS server: the seed of its nodes: %w", err)
	}
	return a, nil
}

// openSeed is the public NKey of the seed in a file, which is made at the first start.
func openSeed(path string) (public string, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = makeSeed(path)
	}
	if err != nil {
		return "", err
	}
	pair, err := nkeys.ParseDecoratedNKey(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w: expected an NKey seed; one is made where the file is missing", path, err)
	}
	return pair.PublicKey()
}

func makeSeed(path string) ([]byte, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	seed, err := pair.Seed()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(append(seed, '\n'))
	return seed, errors.Join(err, f.Close())
}

// Check implements server.Authentication.
func (a *natsAuth) Check(c server.ClientAuthentication) bool {
	user, key := a.user(c.GetOpts(), c.GetNonce())
	if user == nil || user.Account == a.clients && user != a.front && !a.connections.enter(c.GetID(), key) {
		return false
	}
	c.RegisterUser(user)
	return true
}

// user is what the credentials of a connection make of it; nil: they are wrong. key is the API key of a client, nil for one without.
func (a *natsAuth) user(o *server.ClientOpts, nonce []byte) (user *server.User, key api.Caller) {
	switch {
	case o.JWT != "":
		return nil, nil
	case o.Nkey != "":
		if o.Nkey != a.public || !signed(o, nonce) {
			return nil, nil
		}
		if o.Name == frontName {
			return a.front, nil
		}
		return a.node, nil
	case o.Username != "" || o.Password != "":
		for _, u := range []*server.User{a.node, a.front} {
			if u.Username == o.Username && subtle.ConstantTimeCompare([]byte(u.Password), []byte(o.Password)) == 1 {
				return u, nil
			}
		}
		return nil, nil
	case o.Token != "":
		key, err := a.keys.Authenticate("Bearer " + o.Token)
		if err != nil {
			return nil, nil
		}
		return a.asking("key "+key.KeyID(), &server.SubjectPermission{Allow: []string{client.InboxPrefix(o.Token) + ".>"}}), key
	}
	return a.asking("client", &server.SubjectPermission{Allow: []string{"_INBOX.>"}, Deny: []string{client.KeyInboxes + ".>"}}), nil
}

// asking is a client that may read the given inboxes.
func (a *natsAuth) asking(name string, inboxes *server.SubjectPermission) *server.User {
	return &server.User{Username: name, Account: a.clients,
		Permissions: &server.Permissions{Publish: a.client.Permissions.Publish, Subscribe: inboxes}}
}

// signed says whether a connection has the seed of the NKey that it names.
func signed(o *server.ClientOpts, nonce []byte) bool {
	signature, err := base64.RawURLEncoding.DecodeString(o.Sig)
	if err != nil {
		return false
	}
	pair, err := nkeys.FromPublicKey(o.Nkey)
	return err == nil && pair.Verify(nonce, signature) == nil
}
