#!/usr/bin/env bash
# Installs the clients of this folder, locked by hash: each NAME.txt into build/agents/NAME, and the packages of npm into node_modules beside
# this script. Binaries of agents are those for Linux on x86-64.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
installed=$here/node_modules/.installed

for tool in python3 node npm; do
  if ! command -v "$tool" >/dev/null; then
    echo "millrace: $tool is missing, expected Python 3.11 or later and Node 20.20 or later with npm: install it" >&2
    exit 1
  fi
done
mkdir -p "$here/../../build/agents"
for lock in "$here"/*.txt; do
  venv=$here/../../build/agents/$(basename "$lock" .txt)
  if ! cmp -s "$lock" "$venv/lock.txt"; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$lock" # the lock has all
    cp "$lock" "$venv/lock.txt"
  fi
done
if ! cmp -s "$here/package-lock.json" "$installed"; then
  npm ci --prefix "$here" --ignore-scripts --omit=optional --no-audit --no-fund --loglevel error
  echo "module packages" >"$here/node_modules/go.mod" # some packages have Go code, which is not a part of this module
  cp "$here/package-lock.json" "$installed"
fi
