#!/usr/bin/env bash
# Runs the Go tests. A test binary in which code of this module has goroutines, channels or locks, or is called by those of
# NATS and HTTP servers, runs under the race detector. The others run without it: the detector finds nothing there, and
# makes arithmetic ten times as slow.
set -euo pipefail
cd "$(dirname "$0")/.."

module=$(go list -m)
concurrent='\bgo (func\b|[A-Za-z_.]+\()|\bchan [A-Za-z_*[]|\.Go\(|AfterFunc\(|"sync(/atomic)?"|/protoactor-go/|/nats-io/|"net/http(/httptest)?"'

# Folders with concurrent code, and those with concurrent tests.
declare -A code tests
while read -r file; do
  folder=$module/$(dirname "$file")
  if [[ $file == *_test.go ]]; then tests[$folder]=1; else code[$folder]=1; fi
done < <(git ls-files -co --exclude-standard -z '*.go' | xargs -0 grep -lE "$concurrent")

# runs_goroutines PACKAGE LINKED...: PACKAGE's tests are concurrent, or what their binary links is.
runs_goroutines() {
  [ -z "${tests[$1]:-}" ] || return 0
  local linked
  for linked in "${@:2}"; do
    [ -z "${code[$linked]:-}" ] || return 0
  done
  return 1
}

race=()
plain=()
while read -r binary linked; do
  [[ $binary == *.test ]] || continue
  # shellcheck disable=SC2086 # a list of packages
  if runs_goroutines "${binary%.test}" $linked; then race+=("${binary%.test}"); else plain+=("${binary%.test}"); fi
done < <(go list -test -f '{{.ImportPath}} {{join .Deps " "}}' ./...)

log=$(mktemp)
trap 'rm -f "$log"' EXIT
flaky=()

# run FLAG... PACKAGE...: with TEST_AGAIN=1, up to three tests that fail are repeated alone, because those of time-outs can
# fail on a busy machine. Races, panics, time-outs and builds that fail are final.
run() {
  local status=0
  go test -timeout 40m "$@" 2>&1 | tee "$log" || status=$?
  [ "$status" -ne 0 ] || return 0
  [ "${TEST_AGAIN:-}" = 1 ] && ! grep -qE 'DATA RACE|^panic: |failed\]$' "$log" || return "$status"
  local tests packages again=(-count 1 -timeout 40m)
  mapfile -t tests < <(sed -nE 's/^--- FAIL: ([^ ]+) .*/\1/p' "$log" | sort -u)
  [ ${#tests[@]} -ge 1 ] && [ ${#tests[@]} -le 3 ] || return "$status"
  mapfile -t packages < <(sed -nE 's/^FAIL\s+(\S+)\s.*/\1/p' "$log")
  [ "$1" != -race ] || again+=(-race)
  echo "test-go: again, alone: ${tests[*]}"
  go test "${again[@]}" -run "^($(IFS='|' && echo "${tests[*]}"))\$" "${packages[@]}" || return "$status"
  flaky+=("${tests[@]}")
}

failed=0 # one group's failure does not hide the other's
run "${plain[@]}" || failed=$?
run -race "${race[@]}" || failed=$?
[ ${#flaky[@]} -eq 0 ] || echo "test-go: FLAKY, failed once and then passed: ${flaky[*]}"
exit "$failed"
