# Sourced by the load tests: builds k6, and start_server FLAGS... starts a server with the demo model on ports
# beside the default ones. It ends with the script. Sets TARGET_HTTP and TARGET_NATS for k6.
# shellcheck shell=bash
http_port=${LOAD_HTTP_PORT:-18080}
nats_port=${LOAD_NATS_PORT:-14222}
export TARGET_HTTP=http://127.0.0.1:$http_port TARGET_NATS=nats://127.0.0.1:$nats_port
work=build/load
mkdir -p "$work"

(cd benchmarks/k6 && go build -buildvcs=false -o ../../bin/k6 .)

# ready: the server answers GET /health/ready with 200.
ready() {
  local line
  { exec 3<>"/dev/tcp/127.0.0.1/$http_port"; } 2>/dev/null || return 1
  printf 'GET /health/ready HTTP/1.0\r\n\r\n' >&3
  read -r line <&3 || true
  exec 3>&-
  [[ $line == *" 200 "* ]]
}

start_server() {
  env -u MILLRACE_NATS bin/millrace serve --listen "127.0.0.1:$http_port" --nats-listen "127.0.0.1:$nats_port" \
    --data-dir "$work/data" "$@" >"$work/server.log" 2>&1 &
  server=$!
  trap stop_server EXIT
  for _ in $(seq 150); do
    if ready; then return; fi
    if ! kill -0 "$server" 2>/dev/null; then break; fi
    sleep 0.2
  done
  echo "the server is not ready; its log:" >&2
  cat "$work/server.log" >&2
  exit 1
}

stop_server() {
  kill -TERM "$server" 2>/dev/null || true
  wait "$server" || true
}
