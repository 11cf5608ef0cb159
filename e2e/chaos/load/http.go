package load

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/millrace/millrace/client"
)

// Client sends requests to one server, over connections that it keeps. The load runs on the server's
// cores, so it does only what a load needs: one goroutine writes a request and reads its answer, and of
// the answer it decodes the beginning and the end.
type Client struct {
	address string
	head    string // of every request, up to the value of Content-Length

	mu     sync.Mutex
	idle   []*conn
	closed bool
}

type conn struct {
	net.Conn
	in *bufio.Reader
}

// NewClient returns a client of the server at a base address, such as "http://127.0.0.1:8080". key is its
// API key, "" for none. It does not connect yet.
func NewClient(base, key string) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	head := "POST /v1/completions HTTP/1.1\r\nHost: " + u.Host + "\r\nContent-Type: application/json\r\n"
	if key != "" {
		head += "Authorization: Bearer " + key + "\r\n"
	}
	return &Client{address: u.Host, head: head + "Content-Length: "}, nil
}

// Close closes the connections that are idle now or later.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, idle := range c.idle {
		_ = idle.Close()
	}
	c.idle = nil
}

// take returns the connection that was used last, or a new one.
func (c *Client) take() (*conn, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		last := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return last, nil
	}
	c.mu.Unlock()
	nc, err := net.Dial("tcp", c.address) //nolint:noctx // a loopback address
	if err != nil {
		return nil, err
	}
	return &conn{nc, bufio.NewReader(nc)}, nil
}

func (c *Client) put(x *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = x.Close()
		return
	}
	c.idle = append(c.idle, x)
}

// stream sends a request and calls event for the data of each message of its answer. A refusal is a
// *client.Error. Everything ends at a deadline.
func (c *Client) stream(body []byte, deadline time.Time, event func(data []byte) error) error {
	x, err := c.take()
	if err != nil {
		return err
	}
	keep, err := c.exchange(x, body, deadline, event)
	if keep {
		c.put(x)
	} else {
		_ = x.Close()
	}
	return err
}

// exchange reports whether the connection can be used again.
func (c *Client) exchange(x *conn, body []byte, deadline time.Time, event func(data []byte) error) (keep bool, err error) {
	if err := x.SetDeadline(deadline); err != nil {
		return false, err
	}
	request := strconv.AppendInt(append(make([]byte, 0, len(c.head)+len(body)+16), c.head...), int64(len(body)), 10)
	if _, err := x.Write(append(append(request, "\r\n\r\n"...), body...)); err != nil {
		return false, err
	}
	resp, err := http.ReadResponse(x.in, nil)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return false, err
		}
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // 0: none
		return !resp.Close, &client.Error{Status: resp.StatusCode, Message: string(text), RetryAfter: time.Duration(seconds) * time.Second}
	}
	if err := events(resp.Body, event); err != nil {
		return false, err
	}
	return !resp.Close, nil
}

// events reads server-sent events to [DONE] and the end of the body.
func events(body io.Reader, event func(data []byte) error) error {
	lines, done := bufio.NewScanner(body), false
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		switch {
		case !ok: // an id, a comment or the line between two events
		case string(data) == "[DONE]":
			done = true
		default:
			if err := event(data); err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !done {
		return client.ErrCut
	}
	return nil
}

// message decodes the data of an event.
func (o *Outcome) message(data []byte, begin time.Time) error {
	end := bytes.Contains(data, []byte(`"usage":{`)) || bytes.HasPrefix(data, []byte(`{"error"`))
	if o.First != 0 && !end { // one of many chunks between the first token and the end
		return nil
	}
	var chunk struct {
		client.Chunk
		Error *struct{ Message string }
	}
	if err := json.Unmarshal(data, &chunk); err != nil {
		return err
	}
	if chunk.Error != nil {
		return fmt.Errorf("the stream ended with an error: %s", chunk.Error.Message)
	}
	if o.First == 0 && len(chunk.Choices) > 0 && chunk.Choices[0].Content() != "" {
		o.First = time.Since(begin)
	}
	if chunk.Usage != nil {
		o.Tokens = chunk.Usage.CompletionTokens
	}
	return nil
}
