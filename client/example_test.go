package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	httpapi "github.com/millrace/millrace/api/http"
	"github.com/millrace/millrace/client"
)

// exampleServer starts a server that gives the same answer to every request.
func exampleServer(answer ...string) *httptest.Server {
	e := apitest.New(apitest.Say(answer...))
	e.Refuse = func(r *api.Request) error {
		if len(r.Messages) > 1 {
			return &api.Error{Code: api.CodeOverloaded, Message: "the queue is full"}
		}
		return nil
	}
	h, err := httpapi.New(e, httpapi.Options{})
	if err != nil {
		panic(err)
	}
	return httptest.NewServer(h)
}

func ExampleNewHTTP() {
	server := exampleServer("The capital ", "of France ", "is Paris.")
	defer server.Close()

	c, err := client.NewHTTP(server.URL) // such as http://127.0.0.1:8080
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	answer, err := c.Chat(context.Background(), client.ChatRequest{
		Messages: []client.Message{{Role: "user", Content: "What is the capital of France?"}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(answer.Choices[0].Content())
	fmt.Println(answer.Usage.CompletionTokens, "tokens,", answer.Choices[0].FinishReason)
	// Output:
	// The capital of France is Paris.
	// 3 tokens, stop
}

func ExampleClient_Decide() {
	e := apitest.New(func(r *api.Request, s *apitest.Stream) {
		x := &api.Extra{}
		for i := range r.Pool.Answers { // each half as probable as the one before
			x.Answers = append(x.Answers, api.AnswerLogprobs{Tokens: []int32{int32(i)}, Logprobs: []float32{-0.6931472 * float32(i+1)}})
		}
		s.Send(api.Event{Extra: x, Finish: api.FinishStop, Done: true, Usage: &api.Usage{}})
	})
	h, err := httpapi.New(e, httpapi.Options{})
	if err != nil {
		panic(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	c, err := client.NewHTTP(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	d, err := c.Decide(context.Background(), client.DecisionRequest{
		Input: "The package arrived with a broken screen.",
		Questions: []client.Question{
			{Type: "predicate", Name: "damaged", Instructions: "Does the customer report a damaged item?"},
			{Type: "choice", Name: "team", Instructions: "Which team handles this?",
				Choices: []client.Option{{Value: "returns"}, {Value: "billing"}}},
			{Type: "score", Name: "anger", Instructions: "How upset is the customer?",
				Levels: []client.Level{{Label: "calm"}, {Label: "furious"}}},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s %.2f\n", d.Answers[0].Name, d.Answers[0].Probability)
	fmt.Printf("%s %v, of all texts %.2f\n", d.Answers[1].Name, d.Answers[1].Choice, d.Answers[1].Confidence)
	fmt.Printf("%s %.2f\n", d.Answers[2].Name, d.Answers[2].Score)
	// Output:
	// damaged 0.67
	// team returns, of all texts 0.50
	// anger 0.33
}

func ExampleClient_ChatStream() {
	server := exampleServer("One, ", "two, ", "three.")
	defer server.Close()
	c, err := client.NewHTTP(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	for chunk, err := range c.ChatStream(context.Background(), client.ChatRequest{
		Messages: []client.Message{{Role: "user", Content: "Count from one to three."}},
	}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, choice := range chunk.Choices { // the last chunk has the usage and no choices
			fmt.Print(choice.Content())
		}
	}
	fmt.Println()
	// Output: One, two, three.
}

// Leaving the loop cancels the request, and so does the end of the context.
func ExampleClient_ChatStream_cancel() {
	server := exampleServer("One, ", "two, ", "three.")
	defer server.Close()
	c, err := client.NewHTTP(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	for chunk, err := range c.ChatStream(context.Background(), client.ChatRequest{
		Messages: []client.Message{{Role: "user", Content: "Count from one to three."}},
	}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if text := chunk.Choices[0].Content(); text != "" {
			fmt.Println(text)
			break
		}
	}
	// Output: One,
}

func ExampleError() {
	server := exampleServer()
	defer server.Close()
	c, err := client.NewHTTP(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	_, err = c.Chat(context.Background(), client.ChatRequest{
		Messages: []client.Message{{Role: "system", Content: "Be brief."}, {Role: "user", Content: "Hello!"}},
	})
	if refused, ok := errors.AsType[*client.Error](err); ok {
		fmt.Println(refused.Status, refused.Code, refused.RetryAfter)
	}
	// Output: 429 rate_limit_exceeded 1s
}

func ExampleClient_Tokenize() {
	server := exampleServer()
	defer server.Close()
	c, err := client.NewHTTP(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	tokens, err := c.Tokenize(context.Background(), client.TokenizeRequest{Prompt: "Hi"})
	fmt.Println(tokens, err)
	// Output: [1 72 105] <nil>
}

// A stream that loses its server continues at another one.
func ExampleWithServers() {
	c, err := client.NewHTTP("https://gateway-1.example:8080",
		client.WithServers("https://gateway-2.example:8080", "https://gateway-3.example:8080"),
		client.WithTLS("ca.pem", "", ""),
		client.WithAPIKey("mr-0123456789ab-secret"),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
}

func ExampleDialNATS() {
	c, err := client.DialNATS("nats://127.0.0.1:4222", client.WithNATSAPIKey("mr-0123456789ab-secret"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	models, err := c.Models(context.Background())
	fmt.Println(models, err)
}

// A program that has a connection of its own shares it with the client.
func ExampleNewNATS() {
	nc, err := nats.Connect(nats.DefaultURL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer nc.Close()
	c, err := client.NewNATS(nc)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
}
