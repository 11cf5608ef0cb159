#!/usr/bin/env bash
# Runs every Go fuzz target of the module for a time: fuzz.sh 20s. Targets are found by name.
set -euo pipefail
cd "$(dirname "$0")/.."

time=${1:?usage: fuzz.sh DURATION}

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# fuzz PACKAGE TARGET. When the time ends while the engine minimizes an input for its corpus, Go can report
# its own deadline as a failure. A real one names the input that it has written, or the seed that fails.
fuzz() {
  local status=0
  go test "$1" -run '^$' -fuzz "^$2\$" -fuzztime "$time" -fuzzminimizetime 10x -timeout 10m 2>&1 | tee "$log" || status=$?
  [ "$status" -ne 0 ] || return 0
  if grep -q '^ *context deadline exceeded$' "$log" && ! grep -qE 'Failing input|panic|failure while testing seed|_test\.go:' "$log"; then
    echo "fuzz $1 $2: the engine ran into its own deadline; no input failed"
    return 0
  fi
  return "$status"
}

found=0
while IFS=: read -r file declaration; do
  found=$((found + 1))
  target=${declaration#func }
  package=$(dirname "$file")
  echo "fuzz $package $target"
  fuzz "$package" "$target"
done < <(grep -roE --include='*_test.go' --exclude-dir={.git,.venv,build} '^func Fuzz[A-Za-z0-9_]*' . | sort)

echo "fuzz: $found targets, $time each"
