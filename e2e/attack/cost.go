package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

var costAttacks = []attack{
	{"cost: tokenize a megabyte that is slow to tokenize", "keys", tokenizeBomb},
	{"cost: tokenize without end", "keys", tokenizeFlood},
	{"cost: prompts that cannot fit", "keys", hopelessPrompts},
	{"cost: 128 choices of long prompts", "keys", manyChoices},
	{"cost: more than a key's limits", "keys", overLimits},
	{"cost: schemas, expressions and grammars that explode", "keys", grammarBombs},
}

// grammarBombs sends grammars that take much memory or time. Each must be refused, or its answer must end soon.
func grammarBombs(ctx context.Context, _ *suite, t *target) (string, error) {
	nested := strings.Repeat(`{"items":`, 50) + `{"enum":[1]}` + strings.Repeat(`}`, 50)
	var all strings.Builder
	all.WriteString(`{"$defs":{"a0":{"anyOf":[{"type":"string"},{"type":"integer"}]}`)
	for i := 1; i <= 24; i++ {
		fmt.Fprintf(&all, `,"a%d":{"allOf":[{"$ref":"#/$defs/a%d"},{"anyOf":[{"$ref":"#/$defs/a%d"},{"properties":{"p%d":{}}}]}]}`, i, i-1,
			i-1, i)
	}
	all.WriteString(`},"$ref":"#/$defs/a24"}`)
	statuses := map[int]int{}
	longest := time.Duration(0)
	for _, f := range []fields{
		{"guided_regex": "((a{1,1000}){1,1000}){1,1000}"},
		{"guided_regex": strings.Repeat("(", 50_000) + "a" + strings.Repeat(")*", 50_000)},
		{"guided_regex": "(a|b)*a(a|b){9000}"},
		{"guided_json": nested},
		{"guided_json": all.String()},
		{"guided_json": `{"anyOf":[` + strings.Repeat(`{"properties":{"a":{"pattern":"^(a|b|c)*[d-z]{1,200}$"}}},`, 2500) + `{}]}`},
		{"guided_grammar": "start: " + strings.Repeat("(", 200_000)},
		{"guided_grammar": "start: a{1,1000000000}\na: \"x\" | a a"},
		{"guided_grammar": "root ::= " + strings.Repeat("(", 100_000)},
		{"guided_choice": slices.Repeat([]string{strings.Repeat("ab", 30)}, 4000)},
	} {
		f["prompt"], f["max_tokens"], f["temperature"] = "a", 8, 1
		begin := time.Now()
		status, answer, err := t.post(ctx, t.keys[spender], "/v1/completions", f)
		took := time.Since(begin)
		if err != nil {
			return "", err
		}
		if status >= 500 && !strings.Contains(string(answer), "guided_") {
			return "", fmt.Errorf("found status %d: %.200s, expected an answer, a refusal, or an error of the grammar", status, answer)
		}
		if took > 20*time.Second {
			return "", fmt.Errorf("a grammar took %s, expected at most 20 s", took)
		}
		statuses[status]++
		longest = max(longest, took)
	}
	return fmt.Sprintf("%v, the longest %.1f s", statuses, longest.Seconds()), nil
}

func tokenizeBomb(ctx context.Context, _ *suite, t *target) (string, error) {
	begin := time.Now()
	status, body, err := t.post(ctx, t.keys[spender], "/tokenize", fields{"model": "tiny-chat", "prompt": strings.Repeat("a1", 1<<19)})
	took := time.Since(begin)
	if err == nil && (status < 400 || status >= 500) {
		err = fmt.Errorf("found status %d: %.100s, expected 4xx", status, body)
	}
	if err == nil && took > time.Second {
		err = fmt.Errorf("the refusal took %s, expected at most 1 s", took)
	}
	return fmt.Sprintf("%d after %d ms", status, took.Milliseconds()), err
}

func tokenizeFlood(ctx context.Context, _ *suite, t *target) (string, error) {
	const clients, each = 32, 50
	text := strings.Repeat("a1", 2000)
	return flood(ctx, clients, each, func() (int, error) {
		status, _, err := t.post(ctx, t.keys[attacker], "/tokenize", fields{"model": "tiny-chat", "prompt": text})
		return status, err
	})
}

// flood sends requests of many clients. The server must refuse some with 429.
func flood(ctx context.Context, clients, each int, call func() (int, error)) (string, error) {
	var (
		all      sync.WaitGroup
		mu       sync.Mutex
		statuses = map[int]int{}
		failed   error
	)
	for range clients {
		all.Go(func() {
			for range each {
				status, err := call()
				mu.Lock()
				statuses[status]++
				failed = errors.Join(failed, err)
				stop := failed != nil || ctx.Err() != nil
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	all.Wait()
	seen := fmt.Sprintf("%d requests of %d clients: %v", clients*each, clients, statuses)
	if failed == nil && statuses[http.StatusTooManyRequests] == 0 {
		failed = errors.New("found no refused request, expected some with status 429")
	}
	return seen, failed
}

func hopelessPrompts(ctx context.Context, _ *suite, t *target) (string, error) {
	begin := time.Now()
	statuses := map[int]int{}
	text := strings.Repeat("a1", 2<<20)
	for _, body := range []fields{
		{"model": "tiny-chat", "prompt": text, "max_tokens": 1},
		{"model": "tiny-chat", "messages": []fields{{"role": "user", "content": text}}, "max_tokens": 1},
	} {
		path := "/v1/completions"
		if body["messages"] != nil {
			path = "/v1/chat/completions"
		}
		status, answer, err := t.post(ctx, t.keys[spender], path, body)
		if err != nil {
			return "", err
		}
		if status < 400 || status >= 500 {
			return "", fmt.Errorf("4 MiB of text to %s: found status %d: %.100s, expected 4xx", path, status, answer)
		}
		statuses[status]++
	}
	took := time.Since(begin)
	if took > 4*time.Second {
		return "", fmt.Errorf("two refusals took %s, expected at most 4 s", took)
	}
	return fmt.Sprintf("two prompts of 4 MiB: %v after %.1f s", statuses, took.Seconds()), nil
}

func manyChoices(ctx context.Context, _ *suite, t *target) (string, error) {
	const clients, each = 16, 4
	prompt := make([]int, 1500)
	for i := range prompt {
		prompt[i] = 100 + i%50
	}
	return flood(ctx, clients, each, func() (int, error) {
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		status, _, err := t.post(short, t.keys[spender], "/v1/completions",
			fields{"model": "tiny-chat", "prompt": prompt, "n": 128, "max_tokens": 200, "ignore_eos": true, "temperature": 1})
		if errors.Is(err, context.DeadlineExceeded) {
			return 0, nil // cancelled by its client
		}
		return status, err
	})
}

func overLimits(ctx context.Context, _ *suite, t *target) (string, error) {
	const clients, each = 32, 20
	return flood(ctx, clients, each, func() (int, error) {
		status, _, err := t.post(ctx, t.keys[attacker], "/v1/completions",
			fields{"model": "tiny-chat", "prompt": "a", "max_tokens": 64, "ignore_eos": true})
		return status, err
	})
}
