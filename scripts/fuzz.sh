#!/usr/bin/env bash
# Runs every Go fuzz target of the module for a time: fuzz.sh 20s. Targets are found by name.
set -euo pipefail
cd "$(dirname "$0")/.."

time=${1:?usage: fuzz.sh DURATION}

found=0
while IFS=: read -r file declaration; do
  found=$((found + 1))
  target=${declaration#func }
  package=$(dirname "$file")
  echo "fuzz $package $target"
  go test "$package" -run '^$' -fuzz "^$target\$" -fuzztime "$time" -timeout 10m
done < <(grep -roE --include='*_test.go' --exclude-dir={.git,.venv,build} '^func Fuzz[A-Za-z0-9_]*' . | sort)

echo "fuzz: $found targets, $time each"
