package api

import (
	"context"
	"slices"
)

// Caller is the holder of the API key that a request came with.
type Caller interface {
	// KeyID returns the id of the key. It may be logged.
	KeyID() string
	// TenantName returns the tenant that the key belongs to.
	TenantName() string
	// Allows reports whether the key may use a model, one of those that are served.
	Allows(model string, served []Model) bool
}

// Charged is a Caller whose key has limits for what is no request to the engine.
type Charged interface {
	// Charge counts a request. An error is an *Error if the key is above its limits.
	Charge() error
}

// Keys finds the caller of a request.
type Keys interface {
	// Authenticate returns the holder of the key in an Authorization header. An error is an
	// *Error, the same one for every wrong key.
	Authenticate(header string) (Caller, error)
}

type callerKey struct{}

// WithCaller returns a context that carries a caller.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerFrom returns the caller that ctx carries, nil if there is none.
func CallerFrom(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// TenantFrom returns the tenant of the caller that ctx carries, "" if there is none.
func TenantFrom(ctx context.Context) string {
	if c := CallerFrom(ctx); c != nil {
		return c.TenantName()
	}
	return ""
}

// Visible returns the models that the caller of ctx may use. Without a caller it returns all models.
func Visible(ctx context.Context, models []Model) []Model {
	c := CallerFrom(ctx)
	if c == nil {
		return models
	}
	return slices.DeleteFunc(slices.Clone(models), func(m Model) bool { return !c.Allows(m.ID, models) })
}
