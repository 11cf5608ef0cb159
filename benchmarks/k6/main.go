// Command k6 is k6 with the extension k6/x/millrace, which calls Millrace
// as its clients do: streamed chat over HTTP, requests and streams over NATS.
package main

import (
	"go.k6.io/k6/cmd"
	"go.k6.io/k6/js/modules"
)

func main() {
	modules.Register("k6/x/millrace", new(root))
	cmd.Execute()
}
