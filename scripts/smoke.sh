#!/usr/bin/env bash
# Starts bin/millrace with the demo model, streams an answer over HTTP and one over NATS, kills the server, starts it again on the same data,
# and stops it. It takes some seconds.
set -euo pipefail
cd "$(dirname "$0")/.."

http=127.0.0.1:${SMOKE_HTTP_PORT:-18095}
nats=127.0.0.1:${SMOKE_NATS_PORT:-14295}
work=$(mktemp -d)
server=
stop() {
  [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT
fail() {
  echo "smoke.sh: $*" >&2
  cat "$work/log" >&2
  exit 1
}

start() {
  bin/millrace serve --listen "$http" --nats-listen "$nats" --data-dir "$work/data" --kv-memory 64MiB >"$work/log" 2>&1 &
  server=$!
  for _ in $(seq 300); do
    if curl -fsS -o /dev/null "http://$http/health/ready" 2>/dev/null; then return; fi
    kill -0 "$server" 2>/dev/null || fail "the server ended"
    sleep 0.1
  done
  fail "the server is not ready after 30 s"
}

request='{"model": "tiny-chat", "stream": true, "temperature": 0, "max_tokens": 16, "messages": [{"role": "user", "content": "What is the capital of the US?"}]}'
over_http() {
  answer=$(curl -fsSN --max-time 60 "http://$http/v1/chat/completions" -H 'Content-Type: application/json' -d "$request") || fail "no answer over HTTP"
  [[ $answer == *'data: [DONE]'* ]] || fail "found $answer, expected a stream that ends"
}

start
over_http
echo "HTTP: a streamed answer"
answer=$(timeout 60 bin/millrace request millrace.v1.chat.completions --stream --nats "nats://$nats" "$request") || fail "no answer over NATS"
[ -n "$answer" ] || fail "found an empty answer over NATS"
echo "NATS: a streamed answer"

kill -KILL "$server"
wait "$server" 2>/dev/null || true
start
over_http
echo "after kill -9 and a new start: a streamed answer"

kill -TERM "$server"
status=0
wait "$server" || status=$?
server=
[ "$status" = 0 ] || fail "found exit code $status after SIGTERM, expected 0"
echo "stopped"
