package auth

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/millrace/millrace/api"
)

// bucket is a token bucket that holds a minute's allowance. Unlike those of
// x/time/rate it can be in debt and get tokens back: the cost of a request is known
// only at its end.
type bucket struct {
	perMinute float64 // 0: no limit
	level     float64
	at        time.Time // of level
}

func (b *bucket) set(perMinute int, now time.Time) {
	b.fill(now)
	if b.perMinute == 0 {
		b.level = float64(perMinute)
	}
	b.perMinute = float64(perMinute)
	b.level = min(b.level, b.perMinute)
}

func (b *bucket) fill(now time.Time) {
	if d := now.Sub(b.at); d > 0 {
		b.level = min(b.perMinute, b.level+b.perMinute*d.Minutes())
		b.at = now
	}
}

// wait is how long it takes until n may be taken, 0 for now. More than a
// minute's allowance is let through when the bucket is full.
func (b *bucket) wait(n float64) time.Duration {
	lack := min(n, b.perMinute) - b.level
	if b.perMinute == 0 || lack <= 0 {
		return 0
	}
	return time.Duration(math.Ceil(lack / b.perMinute * float64(time.Minute)))
}

// limiter holds what a key has used.
type limiter struct {
	mu               sync.Mutex
	requests, tokens bucket
	resumes          bucket
	concurrent       int // 0: no limit
	running          int
	since            used                 // since the last news
	reported         int                  // running requests in the last news
	others           map[string]elsewhere // by gateway
}

func (l *limiter) set(e *Entry, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests.set(e.RequestsPerMinute, now)
	l.tokens.set(e.TokensPerMinute, now)
	l.concurrent = e.Concurrent
	if e.RequestsPerMinute > 0 {
		l.resumes.set(max(e.RequestsPerMinute, leastResumes), now)
	} else {
		l.resumes.set(0, now)
	}
}

// leastResumes is the least number of resumed streams per minute of a key with limits: a client tries again after a failure.
const leastResumes = 60

// resume takes a resumed stream. It has a bucket of its own: streams that move to another gateway must not be refused because of the
// requests that began them.
func (l *limiter) resume(now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resumes.fill(now)
	if d := l.resumes.wait(1); d > 0 {
		return over(ReasonResumes, d, "the API key has resumed %.0f streams in a minute, at most that", l.resumes.perMinute)
	}
	l.resumes.level--
	return nil
}

// Reasons of a refusal.
const (
	ReasonResumes    = "resumes_per_minute_exceeded"
	ReasonRequests   = "requests_per_minute_exceeded"
	ReasonTokens     = "tokens_per_minute_exceeded"
	ReasonConcurrent = "concurrent_requests_exceeded"
)

// enter takes a request that may cost the given tokens, or refuses it: then it
// costs nothing.
func (l *limiter) enter(now time.Time, tokens int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests.fill(now)
	l.tokens.fill(now)
	if running := l.everywhere(now); l.concurrent > 0 && running >= l.concurrent {
		return over(ReasonConcurrent, time.Second, "the API key has %d requests running, at most %d", running, l.concurrent)
	}
	if d := l.requests.wait(1); d > 0 {
		return over(ReasonRequests, d, "the API key has used its %.0f requests per minute", l.requests.perMinute)
	}
	if d := l.tokens.wait(float64(tokens)); d > 0 {
		return over(ReasonTokens, d, "the API key has used its %.0f tokens per minute, this request may use %d", l.tokens.perMinute, tokens)
	}
	l.running++
	l.requests.level--
	l.tokens.level -= float64(tokens)
	l.since.Requests++
	l.since.Tokens += tokens
	return nil
}

// once takes a request that has ended already.
func (l *limiter) once(now time.Time) error {
	err := l.enter(now, 0)
	if err == nil {
		l.leave(now, 0, 0)
	}
	return err
}

// leave ends a request that entered with reserved tokens and cost used ones.
func (l *limiter) leave(now time.Time, reserved, used int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	l.since.Tokens -= reserved - used
	l.tokens.fill(now)
	l.tokens.level = min(l.tokens.perMinute, l.tokens.level+float64(reserved-used))
}

func over(reason string, wait time.Duration, format string, args ...any) error {
	return &api.Error{Code: api.CodeOverloaded, Reason: reason, RetryAfter: wait, Message: fmt.Sprintf(format, args...)}
}
