// Command nats chats over NATS: a stream, a stream that is cancelled, and a stream that survives its connection.
//
//	go run ./examples/go/nats [nats://127.0.0.1:4222]
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/client"
)

func main() {
	url := nats.DefaultURL
	if len(os.Args) > 1 {
		url = os.Args[1]
	}
	if err := run(context.Background(), url); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url string) error {
	c, err := client.DialNATS(url) // client.WithNATSAPIKey(key) for a server with API keys
	if err != nil {
		return err
	}
	defer c.Close()
	if err := stream(ctx, c); err != nil {
		return err
	}
	if err := cancel(ctx, c); err != nil {
		return err
	}
	return resume(ctx, url)
}

// question returns a request without randomness: the most likely token always wins.
func question(text string) client.ChatRequest {
	var greedy float64
	return client.ChatRequest{
		Messages: []client.Message{{Role: "user", Content: text}},
		Sampling: client.Sampling{Temperature: &greedy},
	}
}

// stream prints an answer while the server makes it.
func stream(ctx context.Context, c client.Client) error {
	fmt.Print("stream: ")
	for chunk, err := range c.ChatStream(ctx, question("What is the capital of the US?")) {
		if err != nil {
			return err // a *client.Error has the status, the code and RetryAfter
		}
		for _, choice := range chunk.Choices { // the last chunk has the usage and no choices
			fmt.Print(choice.Content())
		}
	}
	fmt.Println()
	return nil
}

// cancel reads the beginning of a long answer. Leaving the loop cancels the request, and so does the end of ctx.
func cancel(ctx context.Context, c client.Client) error {
	long := question("Tell me a story.")
	long.MaxCompletionTokens, long.IgnoreEOS = 2000, true
	for chunk, err := range c.ChatStream(ctx, long) {
		if err != nil {
			return err
		}
		if text := chunk.Choices[0].Content(); text != "" {
			fmt.Println("cancel:", text)
			return nil
		}
	}
	return nil
}

// resume loses its connection in the middle of an answer. The connection is made again, here or to another server of
// the NATS cluster. The client then requests what it missed from any gateway, and the loop gets each chunk once.
func resume(ctx context.Context, url string) error {
	d := make(dialer, 8)
	c, err := client.DialNATS(url, client.WithNATSOptions(nats.SetCustomDialer(d)))
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Print("resume: ")
	lost := false
	for chunk, err := range c.ChatStream(ctx, question("Count from 1 to 10.")) {
		if err != nil {
			return err
		}
		for _, choice := range chunk.Choices {
			fmt.Print(choice.Content())
			if !lost && choice.Content() != "" {
				lost = true
				if err := (<-d).Close(); err != nil { // as a network does that breaks
					return err
				}
			}
		}
	}
	fmt.Println()
	return nil
}

// dialer connects, and keeps the connections for resume.
type dialer chan net.Conn

// Dial implements nats.CustomDialer.
func (d dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	if err == nil {
		d <- conn
	}
	return conn, err
}
