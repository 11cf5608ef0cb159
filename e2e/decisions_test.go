package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/e2e/natstest"
)

// decided is the answer to a decisions call, as far as the tests read it.
type decided struct {
	Answers []json.RawMessage
	Usage   struct {
		InputTokens int `json:"input_tokens"`
		Details     struct {
			Cached int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
	}
	Proof *struct {
		Digest  string
		Prompts []struct{ Numerics, Text, Hash string }
		Options []json.RawMessage
	}
}

const decisionContext = `"The package %d arrived on day %d with a broken screen, and the customer wants money."`

// decisionQuestion is question i about a context.
func decisionQuestion(i int) string {
	switch i % 3 {
	case 0:
		return fmt.Sprintf(`{"type":"predicate","instructions":"Is %d damaged?"}`, i)
	case 1:
		return fmt.Sprintf(`{"type":"choice","name":"team","instructions":"Who has %d?","choices":[{"value":"sales"},{"value":"sale"},{"value":true}]}`, i)
	default:
		return fmt.Sprintf(`{"type":"score","instructions":"How bad is %d?","levels":[{"label":"fine"},{"label":"bad"},{"label":"broken"}]}`, i)
	}
}

// decide sends questions about a context, and returns the answer and the bits of its log probabilities to each.
func decide(url string, context, first, questions int) ([]string, error) {
	list := make([]string, questions)
	for i := range list {
		list[i] = decisionQuestion(first + i)
	}
	body := fmt.Sprintf(`{"model":"tiny-chat","proof":true,"input":`+decisionContext+`,"questions":[%s]}`, context, context,
		strings.Join(list, ","))
	r, err := (&http.Client{Timeout: patience}).Post(url+"/v1/decisions", "application/json", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer r.Body.Close() //nolint:errcheck // read only
	raw, err := io.ReadAll(r.Body)
	var d decided
	if err == nil && r.StatusCode == http.StatusOK {
		err = json.Unmarshal(raw, &d)
	}
	if err != nil || len(d.Answers) != questions || d.Proof == nil {
		return nil, fmt.Errorf("%d: %s: %w", r.StatusCode, raw, err)
	}
	for i := range list {
		list[i] = string(d.Answers[i]) + string(d.Proof.Options[i]) + d.Proof.Prompts[i].Numerics + d.Proof.Prompts[i].Hash
	}
	return list, nil
}

// TestDecisionsHaveEqualBits: alone, in batches of 64, and in batches whose worker is killed.
func TestDecisionsHaveEqualBits(t *testing.T) {
	const batch = 64
	decisions := 10_000
	if testing.Short() {
		decisions = 2 * batch
	}
	batches := (decisions + batch - 1) / batch
	alone := startServer(t, "--threads", "1", "--kv-memory", "64MiB")
	want := make([][]string, batches)
	begin := time.Now()
	for b := range want {
		for i := range batch {
			if b*batch+i < decisions {
				one, err := decide("http://"+alone.http, b, i, 1)
				require.NoError(t, err)
				want[b] = append(want[b], one...)
			}
		}
	}
	t.Logf("%d decisions alone: %s", decisions, time.Since(begin).Round(time.Millisecond))
	require.NotEqual(t, want[0][0], want[0][3], "questions differ")
	require.NotEqual(t, want[0][0], want[1][0], "contexts differ")

	url := natstest.Start(t, nil).ClientURL()
	workers := []*server{startRole(t, url, "compute"), startRole(t, url, "compute")}
	gateway := startRole(t, url, "gateway,tokenize,detok")
	require.Eventually(t, func() bool { return metric(t, gateway, `millrace_nodes{role="compute"}`) == 2 }, patience, 10*time.Millisecond)
	compare := func(b int) {
		got, err := decide("http://"+gateway.http, b, 0, len(want[b]))
		if err != nil {
			t.Errorf("batch %d: %v", b, err)
			return
		}
		for i := range got {
			if got[i] != want[b][i] {
				t.Errorf("batch %d, decision %d: found %s, expected %s", b, i, got[i], want[b][i])
			}
		}
	}
	begin = time.Now()
	for b := range want {
		compare(b)
	}
	t.Logf("in batches of %d, two workers: %s", batch, time.Since(begin).Round(time.Millisecond))

	before := metric(t, gateway, "millrace_migrations_total")
	begin = time.Now()
	var wg sync.WaitGroup
	next := make(chan int)
	for range 4 { // several calls at once, so that the worker has some of them when it dies
		wg.Go(func() {
			for b := range next {
				compare(b)
			}
		})
	}
	for b := range want {
		if b == batches/2 {
			require.NoError(t, workers[0].cmd.Process.Kill())
		}
		next <- b
	}
	close(next)
	wg.Wait()
	t.Logf("with a killed worker: %s, %g sequences migrated", time.Since(begin).Round(time.Millisecond),
		metric(t, gateway, "millrace_migrations_total")-before)
	require.Greater(t, metric(t, gateway, "millrace_migrations_total"), before, "something ran at the killed worker")
}

// TestDecisionsAreWhatThePromptsLogProbabilitiesSay: those of an option's tokens after the prompt, over HTTP and NATS. The context is read
// once.
func TestDecisionsAreWhatThePromptsLogProbabilitiesSay(t *testing.T) {
	s := startServer(t)
	context := strings.Repeat("The screen of the package is broken. ", 12)
	const questions = 8
	var list []string
	for i := range questions {
		list = append(list, decisionQuestion(i))
	}
	body := fmt.Sprintf(`{"input":%q,"questions":[%s],"proof":true}`, context, strings.Join(list, ","))
	code, _, raw := s.post(t, "/v1/decisions", body)
	require.Equal(t, http.StatusOK, code, raw)
	var d decided
	require.NoError(t, json.Unmarshal([]byte(raw), &d))
	require.Greater(t, d.Usage.Details.Cached, d.Usage.InputTokens/2, raw)

	reply, err := s.connect(t).Request("millrace.v1.decisions", []byte(body), patience)
	require.NoError(t, err)
	var over decided
	require.NoError(t, json.Unmarshal(reply.Data, &over), "%s", reply.Data)
	require.Equal(t, d.Answers, over.Answers)
	require.Equal(t, d.Proof, over.Proof)

	text := fmt.Sprintf("%s\n\nQuestion: Who has 1?\nOptions:\n- sales\n- sale\n- true\nAnswer with one of the options, exactly as it is written, and nothing else.", context)
	code, _, raw = s.post(t, "/v1/chat/completions/render",
		fmt.Sprintf(`{"messages":[{"role":"user","content":%s}],"chat_template_kwargs":{"enable_thinking":false}}`, inJSON(t, text)))
	require.Equal(t, http.StatusOK, code, raw)
	var prompt struct {
		TokenIDs []int32 `json:"token_ids"`
	}
	require.NoError(t, json.Unmarshal([]byte(raw), &prompt))
	var options []struct {
		Tokens   []int32
		Logprobs []string
	}
	require.NoError(t, json.Unmarshal(d.Proof.Options[1], &options))
	require.Len(t, options, 3)
	sums := make([]float64, len(options))
	for i, o := range options {
		code, _, raw = s.post(t, "/v1/completions", fmt.Sprintf(`{"prompt":%s,"max_tokens":1,"prompt_logprobs":0}`,
			inJSON(t, append(slices.Clip(prompt.TokenIDs), o.Tokens...))))
		require.Equal(t, http.StatusOK, code, raw)
		var scored struct {
			Choices []struct {
				Prompt []map[string]struct{ Logprob float32 } `json:"prompt_logprobs"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(raw), &scored))
		for k, id := range o.Tokens {
			found := scored.Choices[0].Prompt[len(prompt.TokenIDs)+k][strconv.Itoa(int(id))].Logprob
			require.Equal(t, o.Logprobs[k], fmt.Sprintf("%08x", math.Float32bits(found)), "option %d, token %d", i, k)
			sums[i] += float64(found)
		}
	}
	var answer struct {
		Probabilities []struct{ Probability float64 }
		Mass          float64
	}
	require.NoError(t, json.Unmarshal(d.Answers[1], &answer))
	p := []float64{math.Exp(sums[0]), math.Exp(sums[1]), math.Exp(sums[2])}
	if len(options[1].Tokens) < len(options[0].Tokens) { // "sale" begins "sales": an answer is one of them
		for k, id := range options[1].Tokens {
			if options[0].Tokens[k] != id {
				break
			}
			if k == len(options[1].Tokens)-1 {
				p[1] -= p[0]
			}
		}
	}
	mass := p[0] + p[1] + p[2]
	require.InEpsilon(t, mass, answer.Mass, 1e-9)
	for i := range p {
		require.InEpsilon(t, p[i]/mass, answer.Probabilities[i].Probability, 1e-9)
	}
}

// TestAnEarlierProofBindsDecisions to workers of its digests.
func TestAnEarlierProofBindsDecisions(t *testing.T) {
	s := startServer(t)
	ask := func(proof string) (int, string) {
		code, _, raw := s.post(t, "/v1/decisions", fmt.Sprintf(`{"input":"a","questions":[%s],"proof":%s}`, decisionQuestion(0), proof))
		return code, raw
	}
	code, raw := ask("true")
	require.Equal(t, http.StatusOK, code, raw)
	var first, again struct{ Proof json.RawMessage }
	require.NoError(t, json.Unmarshal([]byte(raw), &first))
	code, raw = ask(string(first.Proof))
	require.Equal(t, http.StatusOK, code, raw)
	require.NoError(t, json.Unmarshal([]byte(raw), &again))
	require.JSONEq(t, string(first.Proof), string(again.Proof))

	var d decided
	require.NoError(t, json.Unmarshal([]byte(`{"proof":`+string(first.Proof)+`}`), &d))
	request := fmt.Sprintf(`{"input":"a","questions":[%s],"proof":true}`, decisionQuestion(0))
	_, _, answer := s.post(t, "/v1/decisions", request)
	for _, server := range []string{"http://" + s.http, "nats://" + s.nats} {
		exit, out := verified(t, server, request, answer)
		require.Zero(t, exit, out)
		require.Contains(t, out, "verified: 1 answers, digest "+d.Proof.Digest)
	}
	var options []struct{ Logprobs []string }
	require.NoError(t, json.Unmarshal(d.Proof.Options[0], &options))
	exit, out := verified(t, "http://"+s.http, request, strings.Replace(answer, options[1].Logprobs[0], "bf800000", 1))
	require.Equal(t, 1, exit, out)
	require.Contains(t, out, "proof.options[0][1].logprobs: found bf800000")

	code, raw = ask(strings.Replace(string(first.Proof), d.Proof.Prompts[0].Numerics, strings.Repeat("0", 64), 1))
	require.Equal(t, http.StatusServiceUnavailable, code, raw)
	require.Contains(t, raw, "no process has the numerics digest")
}
