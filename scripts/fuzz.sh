#!/usr/bin/env bash
# Runs every Go fuzz target for a time: fuzz.sh 20s [PACKAGE...]. Targets are found by name.
set -euo pipefail

time=${1:?usage: fuzz.sh DURATION [PACKAGE...]}
shift
[ $# -gt 0 ] || set -- ./...

found=0
while read -r package target; do
  found=$((found + 1))
  echo "fuzz $package $target $time"
  go test "$package" -run '^$' -fuzz "^$target\$" -fuzztime "$time" -timeout 10m
done < <(
  go list -f '{{$p := .}}{{range .TestGoFiles}}{{$p.ImportPath}} {{$p.Dir}}/{{.}}
{{end}}{{range .XTestGoFiles}}{{$p.ImportPath}} {{$p.Dir}}/{{.}}
{{end}}' "$@" |
    while read -r package file; do
      [ -n "$package" ] || continue
      { grep -oE '^func Fuzz[A-Za-z0-9_]*' "$file" || true; } | sed "s|^func |$package |"
    done
)
echo "fuzz: $found targets"
