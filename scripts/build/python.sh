#!/usr/bin/env bash
# Makes build/venv with the Python packages that tests use (requirements.txt beside this script).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=$root/build/venv
requirements=$here/requirements.txt

if cmp -s "$requirements" "$venv/requirements.txt"; then exit 0; fi
if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  echo "millrace: python3 with venv is missing: install it (apt install python3-venv)" >&2
  exit 1
fi
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$requirements"
cp "$requirements" "$venv/requirements.txt"
