package edge

import (
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/openai/wire"
)

// Trust is what stands in for an API key where there is none. A browser can be made to ask by any
// page that it shows.
type Trust int

// The kinds of trust.
const (
	ByKey     Trust = iota // the key says who asks
	Everybody              // pages of other sites may read, as everybody, but not make a server work
	Machine                // as Everybody, and requests come under a name of this machine only
)

// Handler lets through to next what the trust allows.
func (t Trust) Handler(next http.Handler) http.Handler {
	if t == ByKey {
		return next
	}
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		forbid(w, "cross_site_request", fmt.Sprintf("a page of another site (Origin %q) may not use this server without an API key: expected a request of the server's own page or of a program, or a server with --api-keys", r.Header.Get("Origin")))
	}))
	h := cross.Handler(next)
	if t == Everybody {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !local(r.Host) {
			forbid(w, "unknown_host", fmt.Sprintf("the request is for host %q, this server takes those for localhost, 127.0.0.1 and [::1] only: expected one of them, or a server with --api-keys", r.Host))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// local says whether a Host header names this machine. A name of somebody else's can lead to any
// address (DNS rebinding). Programs that send none are no browsers.
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
