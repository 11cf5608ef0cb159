package gateway

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
)

// chat returns messages with a role for each letter: s, u, a, t. Each counts as 10 tokens.
func chat(roles string) []api.Message {
	names := map[rune]string{'s': "system", 'u': "user", 'a': "assistant", 't': "tool"}
	var list []api.Message
	for i, r := range roles {
		list = append(list, api.Message{Role: names[r], Content: string(rune('0' + i))})
	}
	return list
}

const perMessage = 10

// shortened returns the contents of the messages that remain, and what the request answers at the end.
func shortened(t *testing.T, q *api.Request, lim modelLimits, tooLong bool) (left string, r *request, err error) {
	t.Helper()
	r = newRequest(q, lim)
	for range 20 {
		n := perMessage * len(r.api.Messages)
		var failed error
		if tooLong && n >= lim.longest() { // a tokenizer refuses a text that surely does not fit
			n, failed = 0, api.TooLong("messages", "too long")
		}
		if r.shorten(n, failed) {
			continue
		}
		for _, m := range r.api.Messages {
			left += m.Content
		}
		if failed == nil {
			failed = r.tokenized(prompt{ids: make([]int32, n)})
		}
		return left, r, failed
	}
	t.Fatal("no end")
	return "", nil, nil
}

func TestTheOldestMessagesLeaveAChatThatDoesNotFit(t *testing.T) {
	for _, c := range []struct {
		roles              string
		context, maxTokens int
		left               string
	}{
		{"suauau", 61, 0, "012345"},   // it fits
		{"suauau", 60, 5, "0345"},     // 60 is not below 60
		{"suauau", 40, 5, "05"},       // 30 and 5 are below 40, but 0345 is 40
		{"uauauau", 50, 9, "456"},     // system messages are not needed
		{"uauauau", 71, 9, "0123456"}, // it fits, if only in part for the answer
		{"uauauau", 70, 9, "23456"},   // 50 and 9 are below 70
		{"uauauau", 70, 69, "456"},    // half of the context for the answer
		{"uauauau", 70, 0, "23456"},   // a quarter
		{"susauau", 60, 1, "02456"},   // all system messages stay
		{"uatatat", 50, 1, "3456"},    // a result stays with its call
		{"uatttt", 30, 1, "5"},        // the last message stays
		{"suatat", 30, 1, "05"},       // as the system message
		{"suauauauauauauauauau", 65, 4, "0?@ABC"},
	} {
		for _, tooLong := range []bool{false, true} {
			q := apiRequest(1, c.maxTokens)
			q.PromptTokens, q.Messages, q.Truncate, q.ClipMaxTokens = nil, chat(c.roles), true, true
			left, r, err := shortened(t, q, modelLimits{context: c.context, pool: 1 << 20, vocab: 10}, tooLong)
			require.NoError(t, err, c.roles)
			require.Equal(t, c.left, left, "%s in %d", c.roles, c.context)
			require.Equal(t, len(c.roles)-len(c.left), r.dropped)
			require.Len(t, q.Messages, len(c.roles), "the request of others is as it was")
		}
	}
}

func TestAChatThatMayNotBeCutIsRefused(t *testing.T) {
	for name, q := range map[string]*api.Request{
		"truncate is false":           {Messages: chat("uauau")},
		"one message":                 {Messages: chat("u"), Truncate: true},
		"one message of the system's": {Messages: chat("su"), Truncate: true},
		"a last message above it all": {Messages: chat("ssssuau"), Truncate: true},
	} {
		lim := modelLimits{context: 40, pool: 1 << 20, vocab: 10}
		switch name {
		case "one message":
			lim.context = 10
		case "one message of the system's":
			lim.context = 20
		}
		q.N = 1
		_, _, err := shortened(t, q, lim, false)
		require.Equal(t, "context_length_exceeded", api.AsError(err).Reason, name)
	}
	r := newRequest(&api.Request{N: 1, Messages: chat("uauau"), Truncate: true}, modelLimits{context: 30, pool: 1 << 20, vocab: 10})
	require.False(t, r.shorten(0, api.Invalid("messages", "the template refuses it")), "another error")
}

func TestTheFirstEventSaysHowManyMessagesLeft(t *testing.T) {
	q := apiRequest(1, 2)
	q.PromptTokens, q.Messages, q.Truncate = nil, chat("uauau"), true
	_, r, err := shortened(t, q, modelLimits{context: 40, pool: 64, vocab: 10}, false)
	require.NoError(t, err)
	startAll(r, seqs())
	e, v := r.text(&msg.Text{Seq: r.choices[0].seq, Token: 3, Text: "a"})
	require.Equal(t, taken, v)
	require.Equal(t, &api.Extra{Dropped: 2}, e.Extra)
	e, _ = r.text(&msg.Text{Seq: r.choices[0].seq, Token: 3, Index: 1, Text: "a", Finish: api.FinishLength})
	require.Nil(t, e.Extra)
}
