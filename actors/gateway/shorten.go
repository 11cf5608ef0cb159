package gateway

import (
	"errors"

	"github.com/millrace/millrace/api"
)

// shortening searches how much of a chat fits into the context. The oldest messages leave first. System messages and the last message stay.
type shortening struct {
	all    []api.Message
	points []int // where the kept part may begin, in order
	low    int   // no earlier point fits
	high   int   // this point fits, or it is the last one
	now    int   // the point that is being tried
}

// newShortening returns the search in a chat, nil if nothing may leave it.
func newShortening(all []api.Message) *shortening {
	s := &shortening{all: all}
	if s.points = cuts(all); s.points == nil {
		return nil
	}
	s.high = len(s.points) - 1
	s.now = s.high / 2
	return s
}

// cuts returns where the kept part of a chat may begin. A turn of the user comes first, because templates expect one there. Where the last
// turn alone is too long, as in an agent's loop, the part begins at a call of its tools. It never begins at a result, whose call would be
// missing, unless that is the last message.
func cuts(all []api.Message) (points []int) {
	first, user := 0, 0
	for first < len(all) && all[first].Role == "system" {
		first++
	}
	for i := first + 1; i < len(all); i++ {
		if all[i].Role == "user" {
			points, user = append(points, i), i
		}
	}
	for i := max(first, user) + 1; i < len(all); i++ {
		if all[i].Role == "assistant" || i == len(all)-1 {
			points = append(points, i)
		}
	}
	return points
}

// kept returns the messages from the point that is being tried, after the system messages before it.
func (s *shortening) kept() []api.Message {
	at := s.points[s.now]
	kept := make([]api.Message, 0, len(s.all)-at+1)
	for _, m := range s.all[:at] {
		if m.Role == "system" {
			kept = append(kept, m)
		}
	}
	return append(kept, s.all[at:]...)
}

// tried takes whether the messages of kept fit, and returns false when they are the result.
func (s *shortening) tried(fits bool) (again bool) {
	if fits {
		s.high = s.now
	} else {
		s.low = s.now + 1
	}
	if s.low >= s.high {
		again, s.now = s.now != s.high, s.high
		return again
	}
	s.now = (s.low + s.high) / 2
	return true
}

// shorten takes what a tokenizer made of a chat that may be cut: a number of tokens, or an error. It returns true if the chat was cut and
// has to be tokenized again.
func (r *request) shorten(tokens int, err error) (again bool) {
	if !r.api.Truncate || r.api.Messages == nil || r.started {
		return false
	}
	var e *api.Error
	if err != nil && (!errors.As(err, &e) || e.Reason != "context_length_exceeded") {
		return false
	}
	longest := r.limits.longest() - 1
	if r.short == nil {
		if err == nil && tokens <= longest {
			return false
		}
		if r.short = newShortening(r.api.Messages); r.short == nil {
			return false
		}
	} else if !r.short.tried(err == nil && tokens <= longest-r.answerRoom()) {
		return false
	}
	cut := *r.api // others read the request
	cut.Messages = r.short.kept()
	r.api, r.dropped = &cut, len(r.short.all)-len(cut.Messages)
	return true
}

// answerRoom is the room that a cut chat leaves for its answer, in tokens: the maximum of the request, at most half of the context, or a
// quarter.
func (r *request) answerRoom() int {
	longest := r.limits.longest()
	if r.api.MaxTokens > 0 {
		return min(r.api.MaxTokens, longest/2)
	}
	return longest / 4
}
