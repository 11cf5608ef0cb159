#!/usr/bin/env bash
# Checks the titles of commits since the rule exists: "area: what", at most 72 characters, no period at the end. The
# first commit that the rule holds for follows $since. A clone that is too shallow to have it checks what it has: all
# of that is younger.
set -euo pipefail
cd "$(dirname "$0")/.."

since=d881028d6b4381614ada4f93f11d44976b800f90
range=(HEAD)
if git cat-file -e "$since^{commit}" 2>/dev/null; then range=("$since..HEAD"); fi

checked=0
wrong=0
while IFS= read -r title; do
  checked=$((checked + 1))
  if [ ${#title} -gt 72 ]; then
    echo "commit title has ${#title} characters, expected at most 72: $title" >&2
  elif ! [[ $title =~ ^[A-Za-z0-9.][A-Za-z0-9./_-]*(,\ [a-z0-9./_-]+)*:\ [^\ ].*[^.\ ]$ ]]; then
    echo "commit title has not the form \"area: what\": $title" >&2
  else
    continue
  fi
  wrong=$((wrong + 1))
done < <(git log --no-merges --format=%s "${range[@]}")
echo "commit titles: $checked checked"
[ "$wrong" = 0 ]
