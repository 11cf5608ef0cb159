#!/usr/bin/env bash
# Installs the npm packages of the examples, locked by hash (package-lock.json), into examples/javascript/node_modules.
set -euo pipefail

examples=$(cd "$(dirname "$0")/../../examples/javascript" && pwd)
lock=$examples/package-lock.json
installed=$examples/node_modules/.installed

if cmp -s "$lock" "$installed"; then exit 0; fi
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
  echo "millrace: node or npm is missing, expected Node 20.19 or later with npm: install both (apt install nodejs npm)" >&2
  exit 1
fi
npm ci --prefix "$examples" --ignore-scripts --no-audit --no-fund --loglevel error
cp "$lock" "$installed"
