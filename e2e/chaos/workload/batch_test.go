package workload

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func batchAnswer(id, text string) string {
	return fmt.Sprintf(`{"custom_id":%q,"response":{"status_code":200,"request_id":%q,"body":{"id":%q,"choices":[{"text":%q}],"usage":{"prompt_tokens":3,"completion_tokens":2}}},"error":null}`,
		id, id+text, id+text, text) + "\n"
}

func batchError(id, code string) string {
	return fmt.Sprintf(`{"custom_id":%q,"response":null,"error":{"code":%q}}`, id, code) + "\n"
}

func TestEachLineOfABatchIsThereOnceWithTheSameAnswer(t *testing.T) {
	read := func(answers, failures string) *BatchResult {
		b, err := ReadBatch([]byte(answers), []byte(failures))
		require.NoError(t, err)
		return b
	}
	a, b := batchAnswer("line-000000", "a"), batchAnswer("line-000001", "b")
	expected := read(a+b, "")
	other := read(b+a, "")
	require.Equal(t, expected.Digest(), other.Digest(), "the order does not count")
	require.Equal(t, 4, other.Tokens)
	require.NotEqual(t, expected.Digest(), read(a, "").Digest())
	for _, c := range []struct {
		name, answers, failures, unrun string
		want                           Outcome
		apart                          int
	}{
		{"whole", a + b, "", "", Outcome{Streams: 2, Completed: 2}, 0},
		{"missing", a, "", "", Outcome{Streams: 2, Completed: 1, Missing: 1}, 0},
		{"in one file twice", a + b + a, "", "", Outcome{Streams: 2, Completed: 1, Duplicated: 1}, 0},
		{"in both files", a + b, batchError("line-000000", "batch_cancelled"), "batch_cancelled",
			Outcome{Streams: 2, Completed: 1, Duplicated: 1}, 0},
		{"an error", a, batchError("line-000001", "server_error"), "batch_cancelled", Outcome{Streams: 2, Completed: 1, Lost: 1}, 0},
		{"cancelled", a, batchError("line-000001", "batch_cancelled"), "batch_cancelled", Outcome{Streams: 1, Completed: 1}, 1},
		{"cancelled, but nobody did", a, batchError("line-000001", "batch_cancelled"), "", Outcome{Streams: 2, Completed: 1, Lost: 1}, 0},
		{"another answer", a + batchAnswer("line-000001", "x"), "", "", Outcome{Streams: 2, Completed: 1, Differing: 1}, 0},
		{"a line that was never sent", a + b + batchAnswer("x", "x"), "", "", Outcome{Streams: 3, Completed: 2, Duplicated: 1}, 0},
	} {
		found, apart := read(c.answers, c.failures).Judge(2, expected, c.unrun)
		if !found.Good() {
			require.NotEmpty(t, found.Wrong, c.name)
		}
		found.Wrong, found.Tokens = nil, 0
		require.Equal(t, c.want, found, c.name)
		require.Equal(t, c.apart, apart, c.name)
	}
}

func TestALineInTheWrongFileIsAnError(t *testing.T) {
	_, err := ReadBatch(nil, []byte(batchAnswer("line-000000", "a")))
	require.ErrorContains(t, err, "line 1 of the file of errors: found an answer: true, expected false")
	_, err = ReadBatch([]byte(batchError("line-000000", "batch_cancelled")), nil)
	require.ErrorContains(t, err, "line 1 of the file of output")
	_, err = ReadBatch([]byte("{"), nil)
	require.Error(t, err)
}

func TestLinesAreTheSameForASeed(t *testing.T) {
	one, err := Lines(3, 16, 7, "tiny-chat")
	require.NoError(t, err)
	again, err := Lines(3, 16, 7, "tiny-chat")
	require.NoError(t, err)
	require.Equal(t, string(one), string(again))
	require.Equal(t, 3, strings.Count(string(one), `"custom_id":"line-00000`))
	require.Equal(t, 3, strings.Count(string(one), `"max_tokens":16`))
}
