#!/usr/bin/env bash
# Checks that the files and folders which the kernels' README files name in `backticks` exist.
# A name is relative to its README's folder or to the repository's root.
# shellcheck disable=SC2016 # the backquotes are those of Markdown
set -euo pipefail
cd "$(dirname "$0")/.."

checked=0
wrong=0
while IFS= read -r readme; do
  folder=$(dirname "$readme")
  while IFS= read -r name; do
    checked=$((checked + 1))
    if [ ! -e "$folder/$name" ] && [ ! -e "$name" ]; then
      echo "$readme names $name, which does not exist" >&2
      wrong=$((wrong + 1))
    fi
  done < <(sed '/^```/,/^```/d' "$readme" | grep -o '`[^` ]*`' | tr -d '`' | grep -E '\.(cpp|hpp|h|txt|md)$|/$|^[a-z_]+(/[a-z_0-9]+)+$' || true)
done < <(git ls-files 'kernels/*README.md')

echo "references of the kernels' README files: $checked"
[ "$checked" -gt 0 ] && [ "$wrong" -eq 0 ]
