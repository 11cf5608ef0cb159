// Package callpb is the protobuf form of the calls in durable's logs, generated from call.proto. It must
// not know what a field means.
package callpb
