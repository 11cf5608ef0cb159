package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/e2e/chaos/workload"
)

// The workload is that of the fault suite: its number of streams and of tokens, one seed.
const (
	streamCount    = 200
	streamTokens   = 120
	streamSeed     = 19
	concurrent     = 32
	streamPatience = time.Minute
)

// streams runs the workload once. An answer does not depend on the batch that it is computed in.
func streams(ctx context.Context, s *subject) (facts, error) {
	overHTTP, err := client.NewHTTP(s.server.url)
	if err != nil {
		return nil, err
	}
	defer overHTTP.Close()
	overNATS, err := client.DialNATS(s.server.nats)
	if err != nil {
		return nil, err
	}
	defer overNATS.Close()
	run := &workload.Run{
		Clients: func(s *workload.Stream) client.Client {
			return map[string]client.Client{"http": overHTTP, "nats": overNATS}[s.Way.Over]
		},
		Streams:    workload.Streams(streamCount, streamTokens, streamSeed, []string{""}),
		Concurrent: concurrent, Patience: streamPatience, OwnIDs: true,
	}
	f := facts{}
	for _, r := range run.Ask(ctx, nil) {
		if r.Answer.Err != nil {
			return nil, fmt.Errorf("%s: %w", r.Stream, r.Answer.Err)
		}
		sum, tokens, err := digest(r.Answer)
		if err != nil {
			return nil, err
		}
		f[fmt.Sprintf("%03d %s over %s", r.ID, r.Kind, r.Way.Over)] = fmt.Sprintf("%s, %d tokens", sum, tokens)
	}
	if len(f) != streamCount {
		return nil, fmt.Errorf("found %d answers, expected %d", len(f), streamCount)
	}
	return f, nil
}

// digest is a hash of all that an answer says: text, tokens, log probabilities, finish reasons and usage.
func digest(a *workload.Answer) (sum string, tokens int, err error) {
	for _, c := range a.Choices {
		tokens += len(c.Tokens)
	}
	if tokens == 0 {
		return "", 0, errors.New("found an answer without tokens")
	}
	text, err := json.Marshal(struct {
		Choices []workload.Choice
		Usage   client.Usage
	}{a.Choices, a.Usage})
	hash := sha256.Sum256(text)
	return fmt.Sprintf("%x", hash[:12]), tokens, err
}

// numerics is the class of the program's arithmetic, and its digest for the model.
func numerics(ctx context.Context, s *subject) (facts, error) {
	out, err := exec.CommandContext(ctx, s.program, "doctor", "--json", "--model", s.model, isa).Output()
	var said struct{ Numerics, Class string }
	if jsonErr := json.Unmarshal(out, &said); jsonErr != nil { // a warning gives another exit code
		return nil, fmt.Errorf("millrace doctor: %w", errors.Join(jsonErr, err))
	}
	if said.Numerics == "" {
		return nil, fmt.Errorf("millrace doctor: found no digest in %s", out)
	}
	return facts{"class": said.Class, "digest": said.Numerics}, nil
}
