// Package msgpb is the protobuf form of package msg's messages, generated from messages.proto. It must
// not know what a message means.
package msgpb
