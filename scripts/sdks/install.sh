#!/usr/bin/env bash
# Installs the clients of the suites in this folder, locked by hash: into build/sdks/venv and node_modules beside this script.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
venv=$here/../../build/sdks/venv
installed=$here/node_modules/.installed

for tool in python3 node npm; do
  if ! command -v "$tool" >/dev/null; then
    echo "millrace: $tool is missing, expected Python 3.11 or later and Node 20.19 or later with npm: install it" >&2
    exit 1
  fi
done
if ! cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$here/requirements.txt"
  cp "$here/requirements.txt" "$venv/requirements.txt"
fi
if ! cmp -s "$here/package-lock.json" "$installed"; then
  npm ci --prefix "$here" --ignore-scripts --no-audit --no-fund --loglevel error
  cp "$here/package-lock.json" "$installed"
fi
