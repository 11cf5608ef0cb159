// Command http chats over HTTP: a stream, a stream that is cancelled, and a stream that survives its connection.
//
//	go run ./examples/go/http [http://127.0.0.1:8080]
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"

	"github.com/millrace/millrace/client"
)

func main() {
	url := "http://127.0.0.1:8080"
	if len(os.Args) > 1 {
		url = os.Args[1]
	}
	if err := run(context.Background(), url); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url string) error {
	c, err := client.NewHTTP(url) // client.WithAPIKey(key) for a server with API keys
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

// resume loses its connection in the middle of an answer. The client reconnects, and the loop gets each chunk once.
// With client.WithServers the client continues at another gateway when this one is gone.
func resume(ctx context.Context, url string) error {
	connections := make(chan net.Conn, 8)
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			connections <- conn
		}
		return conn, err
	}
	c, err := client.NewHTTP(url, client.WithHTTPClient(&http.Client{Transport: &http.Transport{DialContext: dial}}))
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
				if err := (<-connections).Close(); err != nil { // as a network does that breaks
					return err
				}
			}
		}
	}
	fmt.Println()
	return nil
}
