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
# All files with hashes, so that none is forgotten.
mapfile -t locked < <(git grep -l -e '--hash=sha256:' -- '*.txt')
if [ "${#locked[@]}" -eq 0 ]; then
  echo "audit.sh: found no file with hashes, expected scripts/build/*.txt and others" >&2
  exit 1
fi
failed=0
for file in "${locked[@]}"; do # one by one: pip-audit refuses a package that is in two files
  echo "$file"
  "$venv/bin/pip-audit" --strict --progress-spinner off --disable-pip --require-hashes -r "$file" || failed=1
done
exit "$failed"
