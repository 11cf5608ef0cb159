#!/usr/bin/env bash
# Checks the Python packages that the project pins by hash against PyPI's advisories. A package that PyPI does
# not know fails the audit: pip-audit alone would skip it and report no vulnerabilities.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/audit

if ! cmp -s scripts/build/audit.txt "$venv/requirements.txt"; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r scripts/build/audit.txt
  cp scripts/build/audit.txt "$venv/requirements.txt"
fi
"$venv/bin/pip-audit" --strict --progress-spinner off --disable-pip --require-hashes \
  -r scripts/build/requirements.txt -r scripts/build/sycl.txt -r scripts/build/onednn.txt \
  -r scripts/build/protoc.txt -r scripts/build/clang-tidy.txt -r scripts/build/audit.txt
