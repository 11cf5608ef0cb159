package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/api/proof"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/config"
)

// unchecked is the error of an answer that could not be checked.
type unchecked struct{ err error }

func (u *unchecked) Error() string { return "could not be checked: " + u.err.Error() }
func (u *unchecked) Unwrap() error { return u.err }

func newVerify() *cobra.Command {
	var server serverOptions
	cmd := &cobra.Command{
		Use:   "verify REQUEST ANSWER",
		Short: "Compute an answer again and compare it",
		Long: `Compute the answer to a chat, a completion, a response, a message (Anthropic) or questions (decisions) again, at a server with
workers of the same digests, and compare it with the saved one: its proof, its tokens and its texts, or its probabilities. The request
must have had "proof": true.

REQUEST is a file with the body of the request. ANSWER is a file with the body of the answer, or with the server-sent events or the
lines of a stream. "-" is standard input. The exit code is 0 if the answer is verified, 1 if it differs, and 2 if it could not be
checked, for example because no worker has the digests.`,
		Example: `  curl -s http://127.0.0.1:8080/v1/chat/completions -d @request.json > answer.json
  millrace verify request.json answer.json
  millrace verify request.json answer.json --url tls://nats:4222 --nats-creds client.creds`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "-" && args[1] == "-" {
				return config.Usagef("found - twice, expected standard input to be one of the two")
			}
			request, err := readArgument(cmd.InOrStdin(), args[0])
			if err != nil {
				return &unchecked{err}
			}
			answer, err := readArgument(cmd.InOrStdin(), args[1])
			if err != nil {
				return &unchecked{err}
			}
			c, err := server.dial()
			if err != nil {
				return &unchecked{err}
			}
			defer c.Close()
			return verify(cmd.Context(), cmd.OutOrStdout(), c, request, answer)
		},
	}
	server.register(cmd.Flags())
	return cmd
}

// readArgument returns the content of a file, or of standard input for "-".
func readArgument(in io.Reader, name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(in)
	}
	return os.ReadFile(name)
}

// verify sends a request again and compares the answers. It returns nil if they are the same, and an unchecked if that is not known.
func verify(ctx context.Context, out io.Writer, c client.Client, request, saved []byte) error {
	if isDecision(request) {
		return verifyDecision(ctx, out, c, request, saved)
	}
	old, oldProof, path, err := proven(saved)
	if err != nil {
		return &unchecked{err}
	}
	path, body, err := again(request, path, old.Proof)
	if err != nil {
		return &unchecked{err}
	}
	answer, err := c.Post(ctx, path, body)
	if err != nil {
		return &unchecked{err}
	}
	computed, newProof, _, err := proven(answer)
	if err != nil {
		return &unchecked{fmt.Errorf("the server's answer: %w", err)}
	}
	var differ []string
	if sum := oldProof.Sum(); sum != oldProof.Digest {
		differ = append(differ, fmt.Sprintf("proof.digest: found %s, expected that of its fields, %s", oldProof.Digest, sum))
	}
	differ = append(differ, differences(old, computed)...)
	for _, d := range newProof.Differences(oldProof) {
		differ = append(differ, "proof."+d)
	}
	if len(differ) > 0 {
		return differing(differ)
	}
	tokens := 0
	for _, ch := range newProof.Choices {
		tokens += ch.Tokens
	}
	fmt.Fprintf(out, "verified: %d tokens, digest %s\n", tokens, newProof.Digest)
	return nil
}

// differing returns the error of an answer with differences, of which there are some.
func differing(list []string) error {
	const most = 8
	if more := len(list) - most; more > 0 {
		list = append(list[:most], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("the answer differs: %s", strings.Join(list, "; "))
}

// proven reads an answer with its proof: one JSON object, server-sent events, or a line for each chunk of a stream. The path is that of its
// API, "" for a chat and for a completion.
func proven(data []byte) (a *client.Response, p *proof.Proof, path string, err error) {
	if a, path = otherForm(data); path == "" {
		if a, err = openaiForm(data); err != nil {
			return nil, nil, "", fmt.Errorf("the answer: %w", err)
		}
	}
	if len(a.Proof) == 0 || string(a.Proof) == "null" {
		return nil, nil, "", errors.New(`found an answer without a proof, expected one to a request with "proof": true`)
	}
	p = &proof.Proof{}
	if err := json.Unmarshal(a.Proof, p); err != nil {
		return nil, nil, "", fmt.Errorf("the proof: %w", err)
	}
	if p.Version != proof.Version {
		return nil, nil, "", fmt.Errorf("found a proof of version %d, expected %d", p.Version, proof.Version)
	}
	return a, p, path, nil
}

// openaiForm reads the answer to a chat or to a completion.
func openaiForm(data []byte) (*client.Response, error) {
	a := &client.Response{}
	if json.Unmarshal(data, a) == nil {
		return a, nil
	}
	return client.Gather(func(yield func(client.Chunk, error) bool) {
		for object := range objectsOf(data) {
			var chunk client.Chunk
			err := json.Unmarshal(object, &chunk)
			if !yield(chunk, err) || err != nil {
				return
			}
		}
	})
}

// again returns the path and the body of a request for the answer that a proof is of. path is that of proven.
func again(request []byte, path string, of json.RawMessage) (string, []byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(request, &fields); err != nil {
		return "", nil, fmt.Errorf("the request: %w", err)
	}
	if fields == nil {
		return "", nil, errors.New("the request: found null, expected a JSON object")
	}
	if _, chat := fields["messages"]; path == "" && chat {
		path = "/v1/chat/completions"
	}
	for _, name := range []string{"stream", "stream_options", "stream_resume", "request_id", "background"} {
		delete(fields, name)
	}
	fields["proof"] = of
	if path == pathResponses {
		fields["store"] = json.RawMessage("false")
	}
	body, err := json.Marshal(fields)
	return cmp.Or(path, "/v1/completions"), body, err
}

// differences lists what a saved answer has otherwise than the computed one, in words.
func differences(saved, computed *client.Response) (list []string) {
	if len(saved.Choices) != len(computed.Choices) {
		return []string{fmt.Sprintf("found %d choices, expected %d", len(saved.Choices), len(computed.Choices))}
	}
	for i := range saved.Choices {
		found, expected := &saved.Choices[i], &computed.Choices[i]
		if text := tokenDifference(found.TokenIDs, expected.TokenIDs); text != "" {
			list = append(list, fmt.Sprintf("choice %d: %s", i, text))
		}
		differs := func(name string, same bool) {
			if !same {
				list = append(list, fmt.Sprintf("choice %d: another %s", i, name))
			}
		}
		differs("text", found.Text == expected.Text)
		differs("content", found.Message.Content == expected.Message.Content)
		differs("reasoning_content", found.Message.Reasoning == expected.Message.Reasoning)
		differs("list of tool calls", slices.Equal(functionCalls(found), functionCalls(expected)))
		differs("finish_reason", found.FinishReason == expected.FinishReason)
		differs("value of logprobs", sameJSON(found.Logprobs, expected.Logprobs))
	}
	return list
}

// tokenDifference says where two lists of tokens part, "" if they do not. An answer without token ids is compared by the hash of its proof.
func tokenDifference(found, expected []int32) string {
	n := 0
	for n < min(len(found), len(expected)) && found[n] == expected[n] {
		n++
	}
	switch {
	case len(found) == 0 || n == len(found) && n == len(expected):
		return ""
	case n == len(found) || n == len(expected):
		return fmt.Sprintf("found %d tokens, expected %d", len(found), len(expected))
	}
	return fmt.Sprintf("token %d is %d, expected %d", n, found[n], expected[n])
}

// calls returns the calls of a choice without their ids, which depend on the id of the answer.
func functionCalls(ch *client.Choice) []client.FunctionCall {
	list := make([]client.FunctionCall, len(ch.Message.ToolCalls))
	for i := range list {
		list[i] = ch.Message.ToolCalls[i].Function
	}
	return list
}

// sameJSON reports whether two texts have the same JSON value. Absent is null.
func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	if len(a) > 0 && json.Unmarshal(a, &x) != nil || len(b) > 0 && json.Unmarshal(b, &y) != nil {
		return false
	}
	return reflect.DeepEqual(x, y)
}
