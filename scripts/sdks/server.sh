# Sourced by the scripts beside it: start_server FLAGS... starts a server on free ports of the loopback interface and sets
# BASE_URL. It ends with the script.
# shellcheck shell=bash
work=$(mktemp -d)
server=

stop_server() {
  if [ -n "$server" ]; then
    kill -TERM "$server" 2>/dev/null || true
    wait "$server" || true
  fi
  rm -rf "$work"
}
trap stop_server EXIT

start_server() {
  : >"$work/log"
  env -u MILLRACE_NATS bin/millrace serve --listen 127.0.0.1:0 --nats-listen 127.0.0.1:0 --data-dir "$work/data" "$@" >"$work/log" 2>&1 &
  server=$!
  for _ in $(seq 300); do
    BASE_URL=$(sed -n '/"message":"ready"/s/.*"http":"\([^"]*\)".*/\1/p' "$work/log")
    if [ -n "$BASE_URL" ]; then
      export BASE_URL
      return
    fi
    if ! kill -0 "$server" 2>/dev/null; then break; fi
    sleep 0.2
  done
  echo "the server is not ready; its log:" >&2
  cat "$work/log" >&2
  exit 1
}
