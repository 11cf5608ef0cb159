#!/usr/bin/env bash
# Prints the section of CHANGELOG.md about a version: release-notes.sh VERSION.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${1:?usage: release-notes.sh VERSION}
notes=$(awk -v head="## [$version]" 'index($0, "## [") == 1 { on = index($0, head) == 1; next } on' CHANGELOG.md)
if [ -z "${notes//[[:space:]]/}" ]; then
  echo "release-notes.sh: CHANGELOG.md says nothing about version $version" >&2
  exit 1
fi
echo "$notes"
