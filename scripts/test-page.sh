#!/usr/bin/env bash
# Tests the pages: that the committed ones are those of a fresh build, their modules, and the pages of running servers in
# Chromium. CHROMIUM names its program.
set -euo pipefail
cd "$(dirname "$0")/.."

CHROMIUM=${CHROMIUM:-$(command -v chromium || true)}
if [ -z "$CHROMIUM" ]; then
  echo "millrace: chromium is missing: install it (apt install chromium), or name it in CHROMIUM" >&2
  exit 1
fi
scripts/build/page.sh --check
export CHROMIUM MILLRACE=$PWD/bin/millrace
env -u MILLRACE_NATS node --test --test-reporter spec api/web/page/test/*.test.js
