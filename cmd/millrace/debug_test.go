package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/node"
	"github.com/millrace/millrace/config"
)

// browserAccept is the header of a browser that opens a page.
const browserAccept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

func TestABrowserGetsTheDebugPagesWithoutAKeyAndNoState(t *testing.T) {
	ring, _ := keyring(t, "acme")
	late := &lateEngine{}
	gateway, err := httpHandler(late, &gateway{store: &storage{}}, late, &security{keys: ring}, nil, &config.Serve{}, zerolog.Nop())
	require.NoError(t, err)
	for name, h := range map[string]http.Handler{"worker": workerHandler(late, ring), "gateway": gateway} {
		ask := func(path, accept string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			r := httptest.NewRequest("GET", path, nil)
			r.Header.Set("Accept", accept)
			h.ServeHTTP(w, r)
			return w
		}
		for _, path := range []string{"/debug/kv", "/debug/pipeline"} {
			page := ask(path, browserAccept)
			require.Equal(t, 200, page.Code, name)
			require.Contains(t, page.Body.String(), "/web/debug.js")
			require.Contains(t, page.Header().Get("Content-Security-Policy"), "script-src 'self'")
			require.Equal(t, "Accept", page.Header().Get("Vary"))
			for _, accept := range []string{"", "*/*", "application/json"} {
				state := ask(path+"?brief=1", accept)
				require.Equal(t, 401, state.Code, name)
				require.Equal(t, "Accept", state.Header().Get("Vary"))
			}
		}
		require.Equal(t, 200, ask("/web/debug.js", "*/*").Code, name)
	}
}

func TestTheStateOfTheKVCacheHidesTheNamesOfOtherTenants(t *testing.T) {
	state := func() *node.KVState {
		return &node.KVState{
			Tenants: []node.KVTenant{{Tenant: "acme"}, {Tenant: "rival"}},
			Regions: []node.KVRegion{{Tenant: "rival"}, {Tenant: "acme"}, {Tenant: ""}},
		}
	}
	names := newPseudonyms()
	s, again := state(), state()
	names.hide(s, "acme")
	names.hide(again, "acme")
	require.Equal(t, s, again, "a page that shows one state after the other")
	require.Equal(t, "acme", s.Tenants[0].Tenant)
	require.Regexp(t, "^other-[0-9a-f]{8}$", s.Tenants[1].Tenant)
	require.Equal(t, s.Tenants[1].Tenant, s.Regions[0].Tenant)
	require.Equal(t, []string{"acme", ""}, []string{s.Regions[1].Tenant, s.Regions[2].Tenant})
	require.NotEqual(t, names.of("rival"), newPseudonyms().of("rival"), "a name of this process")
}

func TestTheRequestsOfOtherTenantsHaveOtherNames(t *testing.T) {
	list := func() []node.Timeline {
		return []node.Timeline{{ID: "chatcmpl-1", Tenant: "acme"}, {ID: "chatcmpl-2", Tenant: "rival", PromptTokens: 7}}
	}
	names := newPseudonyms()
	l, again := list(), list()
	names.hideRequests(l, "acme")
	names.hideRequests(again, "acme")
	require.Equal(t, l, again, "a page that shows one state after the other")
	require.Equal(t, list()[0], l[0])
	require.Regexp(t, "^other-[0-9a-f]{8}$", l[1].ID)
	require.Regexp(t, "^other-[0-9a-f]{8}$", l[1].Tenant)
	require.Equal(t, 7, l[1].PromptTokens)
}
