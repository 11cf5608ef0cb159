// Package deploy has the files to deploy Millrace with, and those of them that the program uses
// itself. It must not know what the program does with them.
package deploy

import _ "embed" // of the files

// NATS is the nats-server configuration with a user for each role: nats/millrace.conf. The
// passwords are variables of the environment.
//
//go:embed nats/millrace.conf
var NATS string
