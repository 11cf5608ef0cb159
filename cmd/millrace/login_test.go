package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/e2e/natstest"
)

// secret writes what only its owner may read.
func secret(t *testing.T, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

func pair(t *testing.T, create func() (nkeys.KeyPair, error)) (k nkeys.KeyPair, public string, seed []byte) {
	t.Helper()
	k, err := create()
	require.NoError(t, err)
	public, err = k.PublicKey()
	require.NoError(t, err)
	seed, err = k.Seed()
	require.NoError(t, err)
	return k, public, seed
}

// nkeyServer knows one user by its NKey.
func nkeyServer(t *testing.T) (url string, c config.NATSClient) {
	t.Helper()
	_, public, seed := pair(t, nkeys.CreateUser)
	s := natstest.Start(t, &server.Options{Nkeys: []*server.NkeyUser{{Nkey: public}}})
	return s.ClientURL(), config.NATSClient{NKey: secret(t, "user.nk", seed)}
}

// credsServer knows users by JWTs that an account of its operator has signed.
func credsServer(t *testing.T) (url string, c config.NATSClient) {
	t.Helper()
	operator, operatorPublic, _ := pair(t, nkeys.CreateOperator)
	account, accountPublic, _ := pair(t, nkeys.CreateAccount)
	_, userPublic, seed := pair(t, nkeys.CreateUser)
	encode := func(claims jwt.Claims, by nkeys.KeyPair) string {
		token, err := claims.Encode(by)
		require.NoError(t, err)
		return token
	}
	trusted, err := jwt.DecodeOperatorClaims(encode(jwt.NewOperatorClaims(operatorPublic), operator))
	require.NoError(t, err)
	resolver := &server.MemAccResolver{}
	require.NoError(t, resolver.Store(accountPublic, encode(jwt.NewAccountClaims(accountPublic), operator)))
	creds, err := jwt.FormatUserConfig(encode(jwt.NewUserClaims(userPublic), account), seed)
	require.NoError(t, err)
	url = natstest.Start(t, &server.Options{TrustedOperators: []*jwt.OperatorClaims{trusted}, AccountResolver: resolver}).ClientURL()
	return url, config.NATSClient{Creds: secret(t, "user.creds", creds)}
}

// TestNKeysAndCredentialsOpenNATSForTheServerTheCommandAndTheClient: and nothing else does.
func TestNKeysAndCredentialsOpenNATSForTheServerTheCommandAndTheClient(t *testing.T) {
	for name, start := range map[string]func(*testing.T) (string, config.NATSClient){"nkey": nkeyServer, "creds": credsServer} {
		t.Run(name, func(t *testing.T) {
			url, known := start(t)
			_, err := openNATS(t.Context(), &config.Serve{NATS: url}, nil, zerolog.Nop())
			require.ErrorIs(t, err, nats.ErrAuthorization)
			require.ErrorContains(t, err, "nats-node.nk", "the way out")
			to, err := openNATS(t.Context(), &config.Serve{NATS: url, Security: config.Security{NATSClient: known}}, nil, zerolog.Nop())
			require.NoError(t, err)
			defer to.stop()
			key, entry := auth.NewKey("acme")
			line, err := entry.Line()
			require.NoError(t, err)
			keys, err := auth.Open(secret(t, "keys.yaml", []byte(line)))
			require.NoError(t, err)
			e := apitest.New(func(r *api.Request, s *apitest.Stream) {
				s.Send(api.Event{Pin: &api.Pin{Numerics: "n", Text: "t", Prompt: "h"}})
				apitest.Say("yes")(r, s)
			})
			s, err := natsapi.Start(to.nodes, e, natsapi.Options{Keys: keys})
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Stop(t.Context())) }()

			const subject, body = "millrace.v1.completions", `{"prompt":"x"}`
			flags := []string{"request", subject, body, "--nats", url, "--inbox-prefix", "_INBOX.me"}
			login := []string{"--nats-nkey", known.NKey}
			option, err := nats.NkeyOptionFromSeed(known.NKey)
			if known.Creds != "" {
				login = []string{"--nats-creds", known.Creds}
				option, err = nats.UserCredentials(known.Creds), nil
			}
			require.NoError(t, err)
			who := append(flags, login...)
			code, _, stderr := millrace(t, nil, flags...)
			require.Equal(t, 1, code)
			require.Contains(t, stderr, "Authorization Violation")
			code, stdout, stderr := millrace(t, nil, append(who, "--api-key", key)...)
			require.Equal(t, 0, code, stderr)
			require.Contains(t, stdout, `"text":"yes"`)
			code, stdout, _ = millrace(t, nil, who...)
			require.Equal(t, 1, code)
			require.Contains(t, stdout, "invalid_api_key")

			_, err = client.DialNATS(url)
			require.ErrorIs(t, err, nats.ErrAuthorization)
			c, err := client.DialNATS(url, client.WithNATSOptions(option), client.WithNATSAPIKey(key))
			require.NoError(t, err)
			defer c.Close()
			a, err := c.Complete(t.Context(), client.CompletionRequest{Prompt: "x"})
			require.NoError(t, err)
			require.Equal(t, "yes", a.Choices[0].Text)

			request := `{"prompt":"x","proof":true}`
			answer, err := c.Post(t.Context(), "/v1/completions", []byte(request))
			require.NoError(t, err)
			flags = []string{"verify", secret(t, "request.json", []byte(request)), secret(t, "answer.json", answer), "--url", url,
				"--api-key", key}
			code, _, stderr = millrace(t, nil, flags...)
			require.Equal(t, 2, code)
			require.Contains(t, stderr, "Authorization Violation")
			code, stdout, stderr = millrace(t, nil, append(flags, login...)...)
			require.Equal(t, 0, code, stderr)
			require.Contains(t, stdout, "verified: 1 tokens")
			code, _, stderr = millrace(t, nil, append([]string{"chat", "--url", url, "--api-key", key}, login...)...)
			require.Equal(t, 0, code, stderr)
			code, _, stderr = millrace(t, nil, append([]string{"chat", "--url", "http://x:y@127.0.0.1:1"}, login...)...)
			require.Equal(t, 2, code)
			require.Contains(t, stderr, "found settings of a NATS client with --url http://xxxxx@127.0.0.1:1, expected nats:// or tls://")
		})
	}
}

// Over HTTP both ends prove who they are.
func TestTheClientShowsItsCertificateAndChecksTheServers(t *testing.T) {
	a := newAuthority(t)
	a.issue("server", a.cert)
	a.issue("client", a.cert)
	url, _ := serveTLS(t, &config.Security{TLSCert: a.path("server.crt"), TLSKey: a.path("server.key"), TLSClientCA: a.path("ca.crt")})
	models := func(option client.HTTPOption) error {
		c, err := client.NewHTTP(url, option)
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Models(t.Context())
		return err
	}
	require.ErrorContains(t, models(client.WithTLS("", a.path("client.crt"), a.path("client.key"))), "certificate")
	require.NotContains(t, models(client.WithTLS(a.path("ca.crt"), "", "")).Error(), "JSON", "the server wants ours")
	require.ErrorContains(t, models(client.WithTLS(a.path("ca.crt"), a.path("client.crt"), a.path("client.key"))),
		"unexpected end of JSON input", "the empty page of the test's server")
}
