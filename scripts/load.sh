#!/usr/bin/env bash
# Runs the k6 smoke test (30 s) against a server of its own with the demo model. Exits with k6's status: 99 if a
# threshold fails.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/load-server.sh
source scripts/load-server.sh

start_server "$@"
bin/k6 run --no-usage-report benchmarks/k6/smoke.js
