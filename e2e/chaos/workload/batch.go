package workload

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// BatchEndpoint is the path that the lines of a batch call.
const BatchEndpoint = "/v1/completions"

// lineID returns the custom_id of a line. The order of the texts is that of the lines.
func lineID(n int) string { return fmt.Sprintf("line-%06d", n) }

// Lines returns the file of a batch of n lines. Each samples exactly the given number of tokens with a seed of its own, so its answer is
// the same in every run.
func Lines(n, tokens int, seed uint64, model string) ([]byte, error) {
	random := rand.New(rand.NewPCG(seed, 1))
	var file bytes.Buffer
	to := json.NewEncoder(&file)
	for i := range n {
		if err := to.Encode(map[string]any{"custom_id": lineID(i), "method": "POST", "url": BatchEndpoint, "body": map[string]any{
			"model": model, "prompt": fmt.Sprintf("%d. %s", random.IntN(1000), openings[random.IntN(len(openings))]),
			"max_tokens": tokens, "ignore_eos": true, "temperature": 1, "seed": random.Int64N(1 << 53), // a number that JSON keeps
		}}); err != nil {
			return nil, err
		}
	}
	return file.Bytes(), nil
}

// BatchResult is what the files of a batch that has ended say about its lines, by custom_id.
type BatchResult struct {
	Answers map[string]string // what does not depend on the run: the choices and the numbers of tokens
	Errors  map[string]string // the code of the error, or the status
	Times   map[string]int    // how often each line is there
	Tokens  int               // of all answers
}

// ReadBatch reads the files of answers and of errors. A batch may lack one of them.
func ReadBatch(answers, failures []byte) (*BatchResult, error) {
	b := &BatchResult{Answers: map[string]string{}, Errors: map[string]string{}, Times: map[string]int{}}
	for _, file := range []struct {
		name  string
		text  []byte
		wrong bool
	}{{"output", answers, false}, {"errors", failures, true}} {
		n := 0
		for line := range bytes.Lines(file.text) {
			n++
			if err := b.add(line, file.wrong); err != nil {
				return nil, fmt.Errorf("line %d of the file of %s: %w: %.200s", n, file.name, err, line)
			}
		}
	}
	return b, nil
}

// add adds a line. wrong: it is of the file of errors.
func (b *BatchResult) add(line []byte, wrong bool) error {
	var r struct {
		CustomID string `json:"custom_id"`
		Response *struct {
			StatusCode int `json:"status_code"`
			Body       struct {
				Choices json.RawMessage `json:"choices"`
				Usage   struct {
					Prompt     int `json:"prompt_tokens"`
					Completion int `json:"completion_tokens"`
				} `json:"usage"`
			} `json:"body"`
		} `json:"response"`
		Error *struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return err
	}
	b.Times[r.CustomID]++
	const ok = 200
	switch answered := r.Response != nil && r.Response.StatusCode == ok; {
	case answered == wrong || r.Response == nil && r.Error == nil:
		return fmt.Errorf("found an answer: %t, expected %t", answered, !wrong)
	case answered:
		u := r.Response.Body.Usage
		b.Answers[r.CustomID] = fmt.Sprintf("%s %d %d", r.Response.Body.Choices, u.Prompt, u.Completion)
		b.Tokens += u.Completion
	case r.Error != nil:
		b.Errors[r.CustomID] = r.Error.Code
	default:
		b.Errors[r.CustomID] = fmt.Sprintf("status %d", r.Response.StatusCode)
	}
	return nil
}

// Digest returns a digest of all answers by custom_id, in hexadecimal digits.
func (b *BatchResult) Digest() string {
	sum := sha256.New()
	for _, id := range slices.Sorted(maps.Keys(b.Answers)) {
		fmt.Fprintf(sum, "%s %s\n", id, b.Answers[id])
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Judge compares a batch of n lines with an undisturbed run; nil: it is the undisturbed run. Each line must be there once, with the same
// answer. The lines with the error code unrun are not counted as streams: they are counted apart. "": there may be no error.
func (b *BatchResult) Judge(n int, expected *BatchResult, unrun string) (o Outcome, apart int) {
	said := map[Verdict]int{}
	wrong := func(v Verdict, count *int, format string, args ...any) {
		*count++
		if said[v]++; said[v] <= keepWrong {
			o.Wrong = append(o.Wrong, fmt.Sprintf("%s: ", v)+fmt.Sprintf(format, args...))
		}
	}
	known := map[string]bool{}
	for i := range n {
		id := lineID(i)
		known[id] = true
		o.Streams++
		answer, answered := b.Answers[id]
		code, failed := b.Errors[id]
		switch times := b.Times[id]; {
		case times == 0:
			wrong(Missing, &o.Missing, "%s is in neither file", id)
		case times > 1:
			wrong(Duplicated, &o.Duplicated, "%s is there %d times, expected once", id, times)
		case failed && unrun != "" && code == unrun:
			o.Streams--
			apart++
		case !answered:
			wrong(Lost, &o.Lost, "%s ended with the error %s, expected an answer", id, code)
		case expected != nil && answer != expected.Answers[id]:
			wrong(Differing, &o.Differing, "%s: found %.200s, expected %.200s", id, answer, expected.Answers[id])
		default:
			o.Completed++
		}
	}
	for _, id := range slices.Sorted(maps.Keys(b.Times)) {
		if !known[id] {
			o.Streams++
			wrong(Duplicated, &o.Duplicated, "%q is no line of the batch", id)
		}
	}
	o.Tokens = b.Tokens
	return o, apart
}
