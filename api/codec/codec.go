// Package codec lists the generation calls of all APIs: their paths, subjects and wire formats. The interfaces over HTTP and NATS
// serve this list. It must not know HTTP, NATS or an engine.
package codec

import (
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/openai/wire"
)

// Endpoint is where one kind of call is served.
type Endpoint struct {
	Kind    call.Kind
	Path    string // over HTTP, by POST
	Subject string // over NATS, after the prefix of all subjects
	call.Codec
}

// Endpoints returns the endpoints of all kinds.
func Endpoints() []Endpoint {
	openai := call.Codec{Encode: wire.EncodeAnswer, Stream: wire.NewEncoder, Error: wire.EncodeError}
	chat, completion := openai, openai
	chat.Decode, completion.Decode = wire.DecodeChat, wire.DecodeCompletion
	return []Endpoint{
		{call.Chat, "/v1/chat/completions", "chat.completions", chat},
		{call.Completion, "/v1/completions", "completions", completion},
	}
}

// Of returns the codec of a kind.
func Of(k call.Kind) call.Codec {
	for _, e := range Endpoints() {
		if e.Kind == k {
			return e.Codec
		}
	}
	return call.Codec{}
}
