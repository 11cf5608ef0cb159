package httpserver

import (
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/openai/wire"
)

// Trust says which requests a server accepts without API keys. It exists because any page in a browser
// can send requests.
type Trust int

// The levels of trust.
const (
	ByKey     Trust = iota // requests have API keys
	Everybody              // pages of other sites may read but not start work
	Machine                // as Everybody, and only with this machine's names in the Host header
)

// Handler passes the requests that the trust allows to next, and answers the others with 403.
func (t Trust) Handler(next http.Handler) http.Handler {
	if t == ByKey {
		return next
	}
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		forbid(w, "cross_site_request", fmt.Sprintf("found a request of another site's page (Origin %q) on a server without API keys, expected one of the server's own page or of a program, or a server with --api-keys", r.Header.Get("Origin")))
	}))
	h := cross.Handler(next)
	if t == Everybody {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !local(r.Host) {
			forbid(w, "unknown_host", fmt.Sprintf("found a request for host %q, expected localhost, 127.0.0.1 or [::1], or a server with --api-keys", r.Host))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// local reports whether a Host header names this machine. Another name can resolve to any address (DNS
// rebinding). A request without a Host header does not come from a browser.
func local(host string) bool {
	if host == "" {
		return true
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

func forbid(w http.ResponseWriter, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	_, _ = w.Write(wire.EncodeError(&api.Error{Code: http.StatusForbidden, Reason: reason, Message: message})) // the client is gone
}
