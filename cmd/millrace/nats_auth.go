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
	mostClients int
}

// attach takes the accounts of the server, which are not those of its options. Clients get three
// quarters of the connections at most, or what the configuration gives them: the rest is for nodes.
func (a *natsAuth) attach(s *server.Server, connections int) error {
	var errs []error
	for _, u := range []*server.User{a.node, a.front, a.client} {
		account, err := s.LookupAccount(u.Account.Name)
		errs = append(errs, err)
		u.Account = account
	}
	a.clients, a.mostClients = a.client.Account, connections*3/4
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
	user := a.user(c.GetOpts(), c.GetNonce())
	if user == nil || user.Account == a.clients && user != a.front && a.clients.NumLocalConnections() >= a.mostClients {
		return false
	}
	c.RegisterUser(user)
	return true
}

// user is what the credentials of a connection make of it; nil: they are wrong.
func (a *natsAuth) user(o *server.ClientOpts, nonce []byte) *server.User {
	switch {
	case o.JWT != "":
		return nil
	case o.Nkey != "":
		if o.Nkey != a.public || !signed(o, nonce) {
			return nil
		}
		if o.Name == frontName {
			return a.front
		}
		return a.node
	case o.Username != "" || o.Password != "":
		for _, u := range []*server.User{a.node, a.front} {
			if u.Username == o.Username && subtle.ConstantTimeCompare([]byte(u.Password), []byte(o.Password)) == 1 {
				return u
			}
		}
		return nil
	case o.Token != "":
		key, err := a.keys.Authenticate("Bearer " + o.Token)
		if err != nil {
			return nil
		}
		return a.asking("key "+key.KeyID(), &server.SubjectPermission{Allow: []string{client.InboxPrefix(o.Token) + ".>"}})
	}
	return a.asking("client", &server.SubjectPermission{Allow: []string{"_INBOX.>"}, Deny: []string{client.KeyInboxes + ".>"}})
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
