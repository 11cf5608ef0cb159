package httpserver

import (
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/rs/cors"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/openai"
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

// Access says which requests a server accepts before their keys are checked.
type Access struct {
	Trust Trust
	// Origins are those whose pages may use the server as programs do: "https://chat.example.com", with at most one "*" for any part, or
	// "*". nil: none.
	Origins []string
	// Error returns what encodes an error at a path. nil: OpenAI's form.
	Error func(path string) func(*api.Error) []byte
}

// preflightAge is how long a browser may keep the answer about an origin, in seconds.
const preflightAge = 600

// Handler passes the requests that are accepted to next, and answers the others with 403.
func (a *Access) Handler(next http.Handler) http.Handler {
	if a.Trust == ByKey && len(a.Origins) == 0 {
		return next
	}
	own := next
	if a.Trust != ByKey {
		cross := http.NewCrossOriginProtection()
		cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a.forbid(w, r, "cross_site_request",
				fmt.Sprintf("found a request of another site's page (Origin %s) on a server without API keys, expected one of the server's own page or of a program, a server with --api-keys, or that origin in --cors-origin", api.Quote(r.Header.Get("Origin"))))
		}))
		own = cross.Handler(next)
	}
	h := own
	if len(a.Origins) > 0 {
		h = a.shared(own, next)
	}
	if a.Trust != Machine {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !local(r.Host) {
			a.forbid(w, r, "unknown_host",
				fmt.Sprintf("found a request for host %s, expected localhost, 127.0.0.1 or [::1], or a server with --api-keys",
					api.Quote(r.Host)))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// shared serves the pages of Origins with next, and answers their preflight requests. Other requests reach own.
func (a *Access) shared(own, next http.Handler) http.Handler {
	c := cors.New(cors.Options{
		AllowedOrigins: a.Origins, AllowedMethods: []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete},
		AllowedHeaders: []string{"*"}, ExposedHeaders: []string{"*"}, MaxAge: preflightAge, AllowPrivateNetwork: true,
	})
	return c.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" && c.OriginAllowed(r) {
			next.ServeHTTP(w, r)
			return
		}
		own.ServeHTTP(w, r)
	}))
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

func (a *Access) forbid(w http.ResponseWriter, r *http.Request, reason, message string) {
	encode := openai.EncodeError
	if a.Error != nil {
		encode = a.Error(r.URL.Path)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	_, _ = w.Write(encode(&api.Error{Code: http.StatusForbidden, Reason: reason, Message: message})) // the client is gone
}
