package apitest

import "github.com/millrace/millrace/api"

// Key is an API key of a tenant, without limits.
type Key struct{ ID, Tenant string }

// KeyID implements api.Caller.
func (k Key) KeyID() string { return k.ID }

// TenantName implements api.Caller.
func (k Key) TenantName() string { return k.Tenant }

// Allows implements api.Caller: every model.
func (Key) Allows(string, []api.Model) bool { return true }

// Keys are the keys of a server by their ids. A test may change them between two requests.
type Keys map[string]Key

// Caller returns a key, nil if there is none of the id.
func (k Keys) Caller(id string) api.Caller {
	if key, ok := k[id]; ok {
		return key
	}
	return nil
}

// Tenants is the number of keys: each has a tenant of its own.
func (k Keys) Tenants() int { return len(k) }
