// Package callpb is the protobuf form of a decoded call, from which another process can run its requests, whichever interface decoded it.
// The messages are generated from call.proto. It must not know where calls are stored.
package callpb
