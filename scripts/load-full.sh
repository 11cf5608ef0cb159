#!/usr/bin/env bash
# Loads a server of its own with random requests at rising rates, each kind of request for itself, and
# writes tables and pictures to a folder: RATES (2,4,8,16 requests/s), STEP (30 s), KINDS, OUT.
# Further arguments are the server's flags.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/load-server.sh
source scripts/load-server.sh

out=${OUT:-build/load/curves}
mkdir -p "$out"
start_server "$@"
failed=0
for kind in ${KINDS:-chat completions nats-request nats-stream}; do
  echo "=== $kind"
  bin/k6 run --no-usage-report --quiet -e KIND="$kind" -e OUT="$out/$kind" \
    -e RATES="${RATES:-2,4,8,16}" -e STEP="${STEP:-30}" benchmarks/k6/load.js || failed=$?
done
echo "tables and pictures: $out"
exit "$failed"
