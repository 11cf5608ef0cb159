package config

import (
	"errors"
	"net"
	"strings"

	"github.com/spf13/pflag"
)

// Security configures who may use a server.
type Security struct {
	APIKeys     string // file of keys; "": every local process may ask; NoKeys: everybody may
	TLSCert     string // of the HTTP server; "": no TLS
	TLSKey      string
	TLSClientCA string   // clients of the HTTP server need a certificate of it; "": they need none
	CORSOrigins []string // whose pages may call the HTTP server, see httpserver.Access; nil: none

	NATSAuthFile string // users of the embedded NATS server, as a nats-server configuration
	NATSClients  string // a gateway's user in the clients' account: a URL, or a file of a seed or credentials; "": as --nats
	NATSClient
}

// NoKeys is the value of --api-keys that admits everybody, on any address.
const NoKeys = "none"

// KeysFile is the file of API keys; "": there are none.
func (s *Security) KeysFile() string {
	if s.APIKeys == NoKeys {
		return ""
	}
	return s.APIKeys
}

// Local says whether only local processes may ask: no key is needed, and nobody said that
// everybody may.
func (s *Security) Local() bool { return s.APIKeys == "" }

// NATSClient is how a NATS server knows us, and we it. User and password, or a
// token, are part of the URL.
type NATSClient struct {
	Creds string // file with a user's JWT and seed
	NKey  string // file with a seed
	CA    string // file of the certificates that the server's is checked with
	Cert  string // our own certificate
	Key   string
}

// Register adds the settings to a command's flags.
func (n *NATSClient) Register(f *pflag.FlagSet) {
	f.StringVar(&n.Creds, "nats-creds", "", "credentials file (JWT and seed) of a user of the NATS server")
	f.StringVar(&n.NKey, "nats-nkey", "", "file with the NKey seed of a user of the NATS server")
	f.StringVar(&n.CA, "nats-tls-ca", "",
		"PEM file of the authorities of the NATS server's certificate; of an embedded server: of its clients', which then need one")
	f.StringVar(&n.Cert, "nats-tls-cert", "", "PEM file of this process's certificate for the NATS server; of an embedded server: its own")
	f.StringVar(&n.Key, "nats-tls-key", "", "PEM file of the key of --nats-tls-cert")
}

// Validate checks what belongs together.
func (n *NATSClient) Validate() error {
	if n.Creds != "" && n.NKey != "" {
		return Usagef("--nats-creds and --nats-nkey: expected one of them at most")
	}
	return together("nats-tls-cert", n.Cert, "nats-tls-key", n.Key)
}

// Register adds the settings to a command's flags.
func (s *Security) Register(f *pflag.FlagSet) {
	f.StringVar(&s.APIKeys, "api-keys", "",
		"YAML file of API keys, read again when it changes; \"none\" admits everybody on any --listen (default: no keys, and a loopback --listen only)")
	f.StringVar(&s.TLSCert, "tls-cert", "", "PEM file of the HTTP server's certificate, read again when it changes (default: no TLS)")
	f.StringVar(&s.TLSKey, "tls-key", "", "PEM file of the key of --tls-cert")
	f.StringVar(&s.TLSClientCA, "tls-client-ca", "", "PEM file of the authorities of HTTP clients' certificates, which are then required")
	f.StringSliceVar(&s.CORSOrigins, "cors-origin", nil,
		"origins whose pages may call the HTTP server, such as https://chat.example.com, http://localhost:* or * for all (default: none)")
	f.StringVar(&s.NATSAuthFile, "nats-auth-file", "", "nats-server configuration file with the users of the embedded NATS server")
	f.StringVar(&s.NATSClients, "nats-clients", "",
		"user of a gateway in the account of its clients on the server of --nats: a URL, or a file with an NKey seed or credentials (default: the user of --nats)")
	s.NATSClient.Register(f)
}

// validate checks what belongs together. natsListen is the embedded server's
// address, "" without one.
func (s *Security) validate(natsListen string) error {
	errs := []error{together("tls-cert", s.TLSCert, "tls-key", s.TLSKey), s.Validate()}
	for _, o := range s.CORSOrigins {
		errs = append(errs, origin("cors-origin", o))
	}
	if s.TLSClientCA != "" && s.TLSCert == "" {
		errs = append(errs, Usagef("--tls-client-ca: expected --tls-cert with it"))
	}
	switch {
	case natsListen == "" && s.NATSAuthFile != "":
		errs = append(errs, Usagef("--nats-auth-file is of the embedded NATS server, expected no --nats with it"))
	case natsListen == "":
	case s.NATSClients != "":
		errs = append(errs, Usagef("--nats-clients is for the server of --nats, which is not set"))
	case s.Creds != "" || s.NKey != "":
		errs = append(errs, Usagef("--nats-creds and --nats-nkey are for the server of --nats, which is not set"))
	case s.CA != "" && s.Cert == "":
		errs = append(errs, Usagef("--nats-tls-ca: expected --nats-tls-cert with it, or --nats"))
	case address("", natsListen) == nil && !loopback(natsListen) && s.NATSAuthFile == "":
		errs = append(errs,
			Usagef("--nats-listen: %s is reachable from other machines: expected --nats-auth-file with it, or an address such as 127.0.0.1:4222", natsListen))
	}
	return errors.Join(errs...)
}

// publicHTTP refuses a gateway without keys on an address that other machines reach.
func (s *Security) publicHTTP(listen string) error {
	if s.Local() && address("", listen) == nil && !loopback(listen) {
		return Usagef("--listen: %s is reachable from other machines, where everybody could use it: expected --api-keys FILE with it (millrace keys create), --api-keys %s to admit everybody, or an address such as 127.0.0.1:8080", listen, NoKeys)
	}
	return nil
}

// origin checks the origin of pages as browsers write it: a scheme and a host, no path. "null" is that of files.
func origin(flag, value string) error {
	const expected = `a scheme and a host such as https://chat.example.com, with one * at most, "null" or "*"`
	scheme, host, found := strings.Cut(value, "://")
	switch {
	case value == "*" || value == "null":
	case !found || scheme == "" || host == "" || strings.ContainsAny(host, "/?#@ ") || strings.Contains(scheme, "*"):
		return Usagef("--%s: found %q, expected %s", flag, value, expected)
	case strings.Count(value, "*") > 1:
		return Usagef("--%s: found %q with more than one *, expected %s", flag, value, expected)
	}
	return nil
}

func together(flagA, a, flagB, b string) error {
	if (a == "") != (b == "") {
		return Usagef("--%s and --%s: expected both or none", flagA, flagB)
	}
	return nil
}

// loopback says that an address is reached from this machine only.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
