package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/millrace/millrace/api/proof"
	"github.com/millrace/millrace/client"
)

const pathDecisions = "/v1/decisions"

// decision is the answer to a decisions call, as far as it is compared.
type decision struct {
	Answers []json.RawMessage `json:"answers"`
	Proof   json.RawMessage   `json:"proof"`
}

// isDecision reports whether a request is one of a decisions call.
func isDecision(request []byte) bool {
	var fields struct {
		Questions json.RawMessage `json:"questions"`
	}
	return json.Unmarshal(request, &fields) == nil && fields.Questions != nil
}

// verifyDecision is verify of a decisions call.
func verifyDecision(ctx context.Context, out io.Writer, c client.Client, request, saved []byte) error {
	old, oldProof, err := provenDecision(saved)
	if err != nil {
		return &unchecked{err}
	}
	_, body, err := again(request, pathDecisions, old.Proof)
	if err != nil {
		return &unchecked{err}
	}
	answer, err := c.Post(ctx, pathDecisions, body)
	if err != nil {
		return &unchecked{err}
	}
	computed, newProof, err := provenDecision(answer)
	if err != nil {
		return &unchecked{fmt.Errorf("the server's answer: %w", err)}
	}
	var differ []string
	if sum := oldProof.Sum(); sum != oldProof.Digest {
		differ = append(differ, fmt.Sprintf("proof.digest: found %s, expected that of its fields, %s", oldProof.Digest, sum))
	}
	if found, expected := len(old.Answers), len(computed.Answers); found != expected {
		differ = append(differ, fmt.Sprintf("found %d answers, expected %d", found, expected))
	}
	for i := range min(len(old.Answers), len(computed.Answers)) {
		if !sameJSON(old.Answers[i], computed.Answers[i]) {
			differ = append(differ, fmt.Sprintf("answers[%d]: found %s, expected %s", i, old.Answers[i], computed.Answers[i]))
		}
	}
	for _, d := range newProof.Differences(oldProof) {
		differ = append(differ, "proof."+d)
	}
	if len(differ) > 0 {
		return differing(differ)
	}
	fmt.Fprintf(out, "verified: %d answers, digest %s\n", len(computed.Answers), newProof.Digest)
	return nil
}

// provenDecision reads the answer to a decisions call with its proof.
func provenDecision(data []byte) (a *decision, p *proof.Decisions, err error) {
	a, p = &decision{}, &proof.Decisions{}
	if err := json.Unmarshal(data, a); err != nil {
		return nil, nil, fmt.Errorf("the answer: %w", err)
	}
	if len(a.Proof) == 0 || string(a.Proof) == "null" {
		return nil, nil, errors.New(`found an answer without a proof, expected one to a request with "proof": true`)
	}
	if err := json.Unmarshal(a.Proof, p); err != nil {
		return nil, nil, fmt.Errorf("the proof: %w", err)
	}
	if p.Version != proof.Version {
		return nil, nil, fmt.Errorf("found a proof of version %d, expected %d", p.Version, proof.Version)
	}
	return a, p, nil
}
