package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/e2e/wait"
)

var natsAttacks = []attack{
	{"nats: delete the journal through a ping's reply subject", "keys", deleteJournal},
	{"nats: write into another caller's log through a reply subject", "keys", writeJournal},
	{"nats: listen to others", "keys", eavesdrop},
	{"nats: use JetStream and the nodes' subjects", "keys", privateSubjects},
	{"nats: evict nodes by forged beats", "keys", forgeBeats},
	{"nats: cancel a stream by a predicted subject", "keys", predictCancel},
	{"nats: take others' large bodies, and leave parts of bodies", "keys", largeBodies},
	{"nats: thousands of connections and subscriptions", "keys", natsFlood},
}

// streamPath is the path of a resumable completion, before its request id.
const streamPath = "/v1/streams/cmpl-"

// refusedWait is how long an attack over NATS waits for an answer that must not come.
const refusedWait = 500 * time.Millisecond

// resumable runs a resumable stream of the victim over HTTP and returns the body of its answer.
func (t *target) resumable(ctx context.Context, id string, tokens int) (answer func() ([]byte, error)) {
	var body []byte
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		var status int
		status, body, err = t.post(ctx, t.keys[victim], "/v1/completions",
			fields{"model": "tiny-chat", "prompt": "Count:", "temperature": 0,
				"max_tokens": tokens, "ignore_eos": true, "stream": true, "stream_resume": true, "request_id": id})
		if err == nil && (status != http.StatusOK || !bytes.Contains(body, []byte("[DONE]"))) {
			err = fmt.Errorf("stream %s: found status %d and %.200q, expected a whole stream", id, status, body[max(0, len(body)-200):])
		}
	}()
	return func() ([]byte, error) { <-done; return body, err }
}

// runs waits until a stream of the victim runs.
func (t *target) runs(ctx context.Context, id string) error {
	for {
		status, _, err := t.headOfStream(ctx, id)
		if err == nil && status == http.StatusOK {
			return nil
		}
		if err := wait.For(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// headOfStream requests a stream and leaves at once.
func (t *target) headOfStream(ctx context.Context, id string) (int, string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, t.http+streamPath+id, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer "+t.keys[victim])
	answer, err := t.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	return answer.StatusCode, answer.Header.Get("Content-Type"), nil
}

// deleteJournal attacks JetStream: a gateway that answers to any reply subject deletes the journal of the streams.
func deleteJournal(ctx context.Context, _ *suite, t *target) (string, error) {
	const id = "journal-stays"
	if _, err := t.resumable(ctx, id, 8)(); err != nil {
		return "", err
	}
	nc, err := t.dial("")
	if err != nil {
		return "", err
	}
	defer nc.Close()
	subjects, err := gatewaySubjects(nc)
	if err != nil {
		return "", err
	}
	sent := 0
	for _, subject := range subjects {
		for _, verb := range []string{"DELETE", "PURGE"} {
			m := nats.NewMsg(subject)
			m.Reply = "$JS.API.STREAM." + verb + ".MILLRACE_JOURNAL"
			m.Header.Set("Millrace-Ping", "1")
			if err := nc.PublishMsg(m); err != nil {
				return "", err
			}
			sent++
		}
	}
	if err := errors.Join(nc.FlushTimeout(5*time.Second), wait.For(ctx, refusedWait)); err != nil {
		return "", err
	}
	status, body, err := t.get(ctx, t.keys[victim], streamPath+id)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("the journal is gone: reading a stream gives %d: %.200s", status, body)
	}
	return fmt.Sprintf("%d messages with a reply subject of JetStream's API; the journal is there", sent), err
}

// gatewaySubjects returns the subjects of one gateway, which a client without a key finds in the service's endpoints.
func gatewaySubjects(nc *nats.Conn) ([]string, error) {
	m, err := nc.Request("$SRV.INFO.millrace", nil, 5*time.Second)
	if err != nil {
		return nil, fmt.Errorf("$SRV.INFO: %w", err)
	}
	var info struct {
		Endpoints []struct{ Subject string }
	}
	if err := json.Unmarshal(m.Data, &info); err != nil {
		return nil, err
	}
	var list []string
	for _, e := range info.Endpoints {
		list = append(list, e.Subject)
		if service, _, found := strings.Cut(strings.TrimPrefix(e.Subject, "millrace.v1.at."), "."); found &&
			strings.HasPrefix(e.Subject, "millrace.v1.at.") {
			list = append(list, "millrace.v1.cancel."+service+".x")
		}
	}
	return list, nil
}

// writeJournal makes a gateway send a refusal into the log of a running stream.
func writeJournal(ctx context.Context, _ *suite, t *target) (string, error) {
	const id = "my-2"
	begin := time.Now()
	answer := t.resumable(ctx, id, 400)
	if err := t.runs(ctx, id); err != nil {
		return "", err
	}
	nc, err := t.dial("")
	if err != nil {
		return "", err
	}
	defer nc.Close()
	subjects := []string{"millrace.journal.cmpl-" + id, "millrace.journal.x.cmpl-" + id, "millrace.journal.>", "millrace.resume.x",
		"millrace.limits.used", "$SYS.REQ.USER.INFO"}
	for _, reply := range subjects {
		if err := nc.PublishRequest("millrace.v1.chat.completions", reply, []byte("{}")); err != nil {
			return "", err
		}
	}
	if err := nc.FlushTimeout(5 * time.Second); err != nil {
		return "", err
	}
	body, err := answer()
	took := time.Since(begin)
	if err == nil && bytes.Contains(body, []byte("invalid_api_key")) {
		err = errors.New("the victim's stream has the refusal of another request")
	}
	if err == nil && took > 30*time.Second {
		err = fmt.Errorf("the stream took %s", took)
	}
	return fmt.Sprintf("%d forged reply subjects; the stream was whole after %.1f s", len(subjects), took.Seconds()), err
}

// eavesdrop subscribes to everything while the victim sends requests over NATS with its key.
func eavesdrop(ctx context.Context, _ *suite, t *target) (string, error) {
	const secret = "the-victims-prompt"
	var received, subscribed atomic.Int64
	var leaked sync.Map
	strangers, err := t.strangers()
	if err != nil {
		return "", err
	}
	defer closeAll(strangers)
	for _, nc := range strangers {
		for _, subject := range []string{">", "_INBOX.>", "_INBOX.*.>", "_INBOX.*.*", "_INBOX.*", "millrace.>", "millrace.v1.>",
			"millrace.v1.chat.completions",
			"millrace.node.>", "millrace.journal.>", "millrace.limits.used", "$JS.>", "$SRV.>", "$KV.>", "$O.>"} {
			_, err := nc.Subscribe(subject, func(m *nats.Msg) {
				received.Add(1)
				for _, word := range []string{secret, t.keys[victim], "chat.completion", "text_completion"} {
					if bytes.Contains(m.Data, []byte(word)) || strings.Contains(fmt.Sprint(m.Header), word) {
						leaked.Store(subject+" received "+m.Subject, true)
					}
				}
			})
			if err == nil {
				subscribed.Add(1)
			}
		}
		if err := nc.FlushTimeout(5 * time.Second); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			return "", err
		}
	}
	c, err := client.DialNATS(t.nats, client.WithNATSAPIKey(t.keys[victim]))
	if err != nil {
		return "", err
	}
	defer c.Close()
	for range 5 {
		if _, err := c.Complete(ctx, client.CompletionRequest{Model: "tiny-chat", Prompt: secret, MaxTokens: 8}); err != nil {
			return "", fmt.Errorf("the victim's request over NATS: %w", err)
		}
	}
	if err := wait.For(ctx, refusedWait); err != nil {
		return "", err
	}
	leaked.Range(func(what, _ any) bool { err = errors.Join(err, fmt.Errorf("%v", what)); return true })
	return fmt.Sprintf("%d subscriptions, %d messages received, none of the victim's", subscribed.Load(), received.Load()), err
}

// strangers returns two connections: one without credentials, one with the attacker's key.
func (t *target) strangers() (list []*nats.Conn, err error) {
	for _, key := range []string{"", t.keys[attacker]} {
		nc, err := t.dial(key)
		if err != nil {
			closeAll(list)
			return nil, err
		}
		list = append(list, nc)
	}
	return list, nil
}

func closeAll(list []*nats.Conn) {
	for _, nc := range list {
		nc.Close()
	}
}

// privateSubjects publishes to subjects that are for nodes only.
func privateSubjects(ctx context.Context, _ *suite, t *target) (string, error) {
	sent := 0
	strangers, err := t.strangers()
	if err != nil {
		return "", err
	}
	defer closeAll(strangers)
	for _, nc := range strangers {
		for _, subject := range []string{"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.MILLRACE_JOURNAL",
			"$JS.API.STREAM.DELETE.MILLRACE_JOURNAL",
			"$JS.API.STREAM.INFO.MILLRACE_KV", "$JS.API.CONSUMER.CREATE.MILLRACE_KV.x",
			"$JS.API.STREAM.CREATE.X", "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING.CONNZ"} {
			if m, err := nc.Request(subject, []byte(`{"name":"X","subjects":["x"]}`), refusedWait); err == nil {
				return "", fmt.Errorf("%s answered %.200s", subject, m.Data)
			}
			sent++
		}
		for _, subject := range []string{"millrace.limits.used", "millrace.journal.x", "millrace.node.n00000001.cancel",
			"millrace.resume.x", "millrace.kv.n00000001"} {
			_ = nc.Publish(subject, []byte("nonsense")) // refused by the server, later
			sent++
		}
		_ = nc.FlushTimeout(5 * time.Second) // the server may have closed the connection
	}
	return fmt.Sprintf("%d messages, no answer", sent), ctx.Err()
}

// forgeBeats publishes heartbeats that say that a worker has left.
func forgeBeats(ctx context.Context, s *suite, t *target) (string, error) {
	worker, err := s.join(ctx, t, "compute")
	if err != nil {
		return "", err
	}
	defer func() { _ = worker.Kill() }() // only its end counts
	nodes, err := t.nodes(ctx, s)
	if err != nil {
		return "", err
	}
	if len(nodes) < 2 {
		return "", fmt.Errorf("found the nodes %v, expected two", nodes)
	}
	dead := t.LogCount(`"a node is gone"`) + t.LogCount(`"a node is silent"`)
	strangers, err := t.strangers()
	if err != nil {
		return "", err
	}
	defer closeAll(strangers)
	for _, nc := range strangers {
		for range 50 {
			for _, node := range nodes {
				beat := fmt.Appendf(nil, `{"node":%q,"left":true,"beats_every":250000000}`, node)
				for _, subject := range []string{"millrace.registry.beat", "millrace.registry.v2.beat"} {
					_ = nc.Publish(subject, beat) // refused by the server, later
				}
				gone := nats.NewMsg("millrace.registry.gone." + nodes[0] + "." + node)
				gone.Header.Set("Status", "503")
				_ = nc.PublishMsg(gone)
			}
			if err := wait.For(ctx, 10*time.Millisecond); err != nil {
				return "", err
			}
		}
	}
	after, err := t.nodes(ctx, s)
	switch {
	case err != nil:
		return "", err
	case len(after) < len(nodes):
		return "", fmt.Errorf("found the nodes %v after the attack, expected %v", after, nodes)
	case t.LogCount(`"a node is gone"`)+t.LogCount(`"a node is silent"`) != dead:
		return "", errors.New("a node was considered dead during the attack")
	}
	return fmt.Sprintf("100 forged beats for each of %d nodes; all stayed", len(nodes)), nil
}

// predictCancel tries to cancel a stream of the victim by the subjects that an attacker can predict.
func predictCancel(ctx context.Context, _ *suite, t *target) (string, error) {
	const id = "predicted"
	nc, err := t.dial("")
	if err != nil {
		return "", err
	}
	defer nc.Close()
	subjects, err := gatewaySubjects(nc)
	if err != nil {
		return "", err
	}
	c, err := client.DialNATS(t.nats, client.WithNATSAPIKey(t.keys[victim]))
	if err != nil {
		return "", err
	}
	defer c.Close()
	tokens, sent := 0, 0
	for chunk, err := range c.CompleteStream(ctx, client.CompletionRequest{Model: "tiny-chat", Prompt: "Count:", MaxTokens: 300,
		Sampling: client.Sampling{IgnoreEOS: true}}) {
		if err != nil {
			return "", fmt.Errorf("the victim's stream after %d chunks: %w", tokens, err)
		}
		tokens++
		for _, subject := range subjects {
			if prefix, found := strings.CutSuffix(subject, ".x"); found && strings.Contains(prefix, ".cancel.") && tokens < 200 {
				for _, suffix := range []string{fmt.Sprintf("%s-%d", chunk.ID, tokens), fmt.Sprintf("cmpl-%s-%d", id, tokens),
					fmt.Sprint(tokens), "*", ">"} {
					_ = nc.Publish(prefix+"."+suffix, nil)
					sent++
				}
			}
		}
	}
	if err := nc.FlushTimeout(5 * time.Second); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		return "", err
	}
	if tokens < 100 {
		return "", fmt.Errorf("found %d chunks, expected some 300", tokens)
	}
	return fmt.Sprintf("%d predicted subjects; the stream was whole", sent), nil
}

// largeBodies tries to read the objects that held bodies in earlier versions, and leaves bodies unfinished.
func largeBodies(ctx context.Context, _ *suite, t *target) (string, error) {
	nc, err := t.dial("")
	if err != nil {
		return "", err
	}
	defer nc.Close()
	part := bytes.Repeat([]byte("a"), 256<<10)
	for i := range 400 { // 100 MiB without a key
		m := nats.NewMsg("millrace.v1.bodies.part")
		if i == 0 {
			m.Subject = "millrace.v1.bodies.open"
		}
		m.Reply, m.Data = nc.NewRespInbox(), part
		if err := nc.PublishMsg(m); err != nil {
			break // the server has closed the connection
		}
	}
	if err := nc.FlushTimeout(10 * time.Second); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		return "", err
	}
	c, err := client.DialNATS(t.nats, client.WithNATSAPIKey(t.keys[victim]))
	if err != nil {
		return "", err
	}
	defer c.Close()
	ids, err := c.Tokenize(ctx, client.TokenizeRequest{Model: "tiny-chat", Prompt: "hello"})
	if err == nil && len(ids) == 0 {
		err = errors.New("no tokens of the victim's prompt")
	}
	return "100 MiB of parts without a key; the victim's requests over NATS are answered", err
}

// natsFlood opens many connections and subscriptions without a key, and with that of a tenant without limits.
func natsFlood(ctx context.Context, s *suite, t *target) (string, error) {
	var conns []*nats.Conn
	defer func() { closeAll(conns) }()
	refused := 0
	for _, key := range []string{"", t.keys[spender]} {
		for most := refused + 20; len(conns) < s.slow && refused <= most; {
			nc, err := t.dial(key, nats.Timeout(2*time.Second))
			if err != nil {
				refused++
				continue
			}
			conns = append(conns, nc)
		}
	}
	subscriptions := 0
	for _, nc := range conns[:min(len(conns), 5)] {
		for i := range 20_000 {
			if _, err := nc.SubscribeSync(fmt.Sprintf("_INBOX.flood.%d", i)); err != nil {
				break
			}
			subscriptions++
		}
		_ = nc.FlushTimeout(5 * time.Second) // the server may have closed the connection
	}
	c, err := client.DialNATS(t.nats, client.WithNATSAPIKey(t.keys[victim]))
	if err != nil {
		return "", fmt.Errorf("the victim cannot connect beside %d connections: %w", len(conns), err)
	}
	defer c.Close()
	if _, err := c.Complete(ctx, client.CompletionRequest{Model: "tiny-chat", Prompt: "Hi", MaxTokens: 4}); err != nil {
		return "", fmt.Errorf("the victim's request beside %d connections: %w", len(conns), err)
	}
	return fmt.Sprintf("%d connections, %d refused; %d subscriptions", len(conns), refused, subscriptions), nil
}
