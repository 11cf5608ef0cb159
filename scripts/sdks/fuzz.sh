#!/usr/bin/env bash
# fuzz.sh EXAMPLES: sends EXAMPLES random requests to every operation of /openapi.json, on a server of its own with a simulated device. Fails
# if an answer is a 5xx or does not match the document.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/sdks/server.sh
source scripts/sdks/server.sh

start_server --model models/tiny-chat --backend sim
build/sdks/venv/bin/schemathesis --config-file scripts/sdks/schemathesis.toml run "$BASE_URL/openapi.json" --checks all --continue-on-failure \
  --max-examples "$1" --request-timeout 60 --max-response-time 15 # for 10 s a young server waits for the log of a stream that another one may have
