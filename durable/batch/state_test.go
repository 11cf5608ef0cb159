package batch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

var now = time.Unix(1_700_000_000, 0)

func record() *Record {
	return New("batch_1", "t", "k", "/v1/completions", "file-1", 24*time.Hour, nil, now)
}

func TestABatchRunsFromOneStateToTheNext(t *testing.T) {
	r := record()
	require.Equal(t, now, r.Created())
	require.False(t, r.Runs())
	require.NoError(t, r.Begin(3, now.Add(time.Second)))
	require.True(t, r.Runs())
	r.Count(1, 1)
	require.Error(t, r.Finalize(now), "a line has no result")
	r.Count(2, 1)
	require.NoError(t, r.Finalize(now.Add(2*time.Second)))
	require.Error(t, r.End(Counts{Total: 3, Completed: 2}, "o", "e", now), "a line is not accounted for")
	require.Error(t, r.End(Counts{Total: 2, Completed: 2}, "o", "e", now), "a line is missing")
	require.NoError(t, r.End(Counts{Total: 3, Completed: 2, Failed: 1}, "o", "e", now.Add(3*time.Second)))
	require.Equal(t, Completed, r.Status)
	require.Equal(t, map[Status]int64{Validating: now.Unix(), InProgress: now.Unix() + 1, Finalizing: now.Unix() + 2,
		Completed: now.Unix() + 3}, r.Times)
	require.True(t, r.Status.Ended())
}

func TestACancelledBatchEndsCancelled(t *testing.T) {
	for _, begun := range []bool{false, true} {
		r := record()
		if begun {
			require.NoError(t, r.Begin(2, now))
		}
		require.NoError(t, r.Cancel(now))
		require.NoError(t, r.Cancel(now), "again")
		require.False(t, r.Runs())
		require.Equal(t, "batch_cancelled", r.Unrun().Code)
		require.NoError(t, r.End(Counts{Total: 2, Failed: 2}, "", "e", now))
		require.Equal(t, Cancelled, r.Status)
		require.NoError(t, r.Cancel(now), "an end is an end")
		require.Equal(t, Cancelled, r.Status)
	}
}

func TestALateBatchExpires(t *testing.T) {
	r := record()
	require.NoError(t, r.Begin(2, now))
	require.NoError(t, r.Expire(now))
	require.Equal(t, Finalizing, r.Status)
	require.Equal(t, "batch_expired", r.Unrun().Code)
	require.Error(t, r.Cancel(now))
	require.NoError(t, r.End(Counts{Total: 2, Completed: 1, Failed: 1}, "o", "e", now))
	require.Equal(t, Expired, r.Status)
}

// Any order of steps ends in one of the states, and no step changes one that has ended.
func TestNoOrderOfStepsLeavesTheStates(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	ends := map[Status]int{}
	for range 2000 {
		r := record()
		steps := []func() error{
			func() error { return r.Begin(2, now) }, func() error { return r.Fail([]Fault{{Code: "x"}}, now) },
			func() error { return r.Cancel(now) },
			func() error { return r.Expire(now) }, func() error { r.Count(1, 1); return nil }, func() error { return r.Finalize(now) },
			func() error { return r.End(Counts{Total: 2, Completed: 1, Failed: 1}, "o", "e", now) },
		}
		for range 30 {
			before := *r
			err := steps[random.IntN(len(steps))]()
			if before.Status.Ended() {
				require.Equal(t, before.Status, r.Status)
			}
			if err != nil {
				require.Equal(t, before.Status, r.Status, "a refused step changes nothing")
			}
			body, err := json.Marshal(r)
			require.NoError(t, err)
			again := new(Record)
			require.NoError(t, json.Unmarshal(body, again))
			require.Equal(t, r, again)
		}
		ends[r.Status]++
	}
	for _, s := range []Status{Completed, Expired, Cancelled, Failed} {
		require.NotZero(t, ends[s], s)
	}
}

func line(id string, more string) string {
	return fmt.Sprintf(`{"custom_id":%q,"method":"POST","url":"/v1/completions","body":{"prompt":"x"}%s}`, id, more)
}

func TestAFileIsCheckedLineByLine(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		code string
		line int
	}{
		{line("a", "") + "\n" + line("b", "") + "\n", 2, "", 0},
		{line("a", "") + "\r\n\r\n" + line("b", ""), 2, "", 0},
		{byteOrderMark + line("a", "") + "\n" + line("b", ""), 2, "", 0},
		{line("a", "") + "\n" + byteOrderMark + line("b", ""), 2, "invalid_json_line", 2},
		{byteOrderMark, 0, "empty_file", 0},
		{"", 0, "empty_file", 0},
		{"\n \n", 0, "empty_file", 0},
		{line("a", "") + "\n{\n", 2, "invalid_json_line", 2},
		{line("a", "") + line("b", ""), 1, "invalid_json_line", 1},
		{line("a", "") + "\n" + line("b", "") + "\n" + line("a", ""), 3, "duplicate_custom_id", 3},
		{line("", ""), 1, "invalid_custom_id", 1},
		{strings.Replace(line("a", ""), `"a"`, "\"a\xff\"", 1), 1, "invalid_json_line", 1},
		{strings.Replace(line("a", ""), `"a"`, `"a\ud800"`, 1), 1, "invalid_json_line", 1},
		{strings.Replace(line("a", ""), `"a"`, `"a\ud83d\ude00"`, 1), 1, "", 0},
		{line("a", `,"method":"GET"`), 1, "invalid_method", 1},
		{line("a", `,"url":"/v1/chat/completions"`), 1, "invalid_url", 1},
		{line("a", `,"body":[]`), 1, "invalid_body", 1},
		{line("a", `,"x":"`+strings.Repeat("y", 2000)+`"`) + "\n" + line("b", ""), 2, "line_too_large", 1},
	} {
		n, faults, err := checkFile(iotest.HalfReader(strings.NewReader(c.text)), "/v1/completions", 1000)
		require.NoError(t, err)
		require.Equal(t, c.n, n, "%.80q", c.text)
		if c.code == "" {
			require.Empty(t, faults)
			continue
		}
		require.Len(t, faults, 1, "%.80q", c.text)
		require.Equal(t, c.code, faults[0].Code)
		require.Equal(t, c.line, faults[0].Line)
		require.NotEmpty(t, faults[0].Message)
	}
	broken := errors.New("broken")
	_, _, err := checkFile(io.MultiReader(strings.NewReader(line("a", "")), iotest.ErrReader(broken)), "/v1/completions", 1000)
	require.ErrorIs(t, err, broken, "a file that cannot be read is no shorter file")
	_, faults, err := checkFile(strings.NewReader(strings.Repeat("x\n", 1000)), "/v1/completions", 1000)
	require.NoError(t, err)
	require.Len(t, faults, maxFaults)
}

func TestOneLineMoreThanTheMostIsTooMany(t *testing.T) {
	var b bytes.Buffer
	for i := range MaxLines {
		b.WriteString(line(fmt.Sprint(i), "") + "\n")
	}
	n, faults, err := checkFile(bytes.NewReader(b.Bytes()), "/v1/completions", 1000)
	require.NoError(t, err)
	require.Empty(t, faults)
	require.Equal(t, MaxLines, n)
	b.WriteString(line("one more", ""))
	_, faults, err = checkFile(&b, "/v1/completions", 1000)
	require.NoError(t, err)
	require.Equal(t, "too_many_lines", faults[0].Code)
}

func TestALinesNameIsItsOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, b := range []string{"batch_1", "batch_2", "batch_1/1"} {
		for n := range 100 {
			require.False(t, seen[key(b, n)])
			seen[key(b, n)] = true
		}
	}
}

func TestOnlyAnAnswerIsOK(t *testing.T) {
	l := &Line{CustomID: "a"}
	require.True(t, answered("x", l, []byte("{}")).OK())
	require.False(t, failed("x", l, &api.Error{Code: 400}, []byte("{}")).OK())
	require.False(t, unanswered("x", "a", Fault{Code: "c"}).OK())
	body, err := answered("x", l, []byte(`{"text":"<b>"}`)).encode()
	require.NoError(t, err)
	require.Equal(t,
		`{"id":"batch_req_x","custom_id":"a","response":{"status_code":200,"request_id":"x","body":{"text":"<b>"}},"error":null}`+"\n",
		string(body))
}

func FuzzLines(f *testing.F) {
	f.Add([]byte(line("a", "")+"\n"+line("b", "")), 100)
	f.Fuzz(func(t *testing.T, text []byte, limit int) {
		n, faults, err := checkFile(bytes.NewReader(text), "/v1/completions", limit)
		if err != nil || n == 0 && len(faults) == 0 {
			t.Fatalf("%d lines, %v, %v", n, faults, err)
		}
	})
}
