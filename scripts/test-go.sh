#!/usr/bin/env bash
# Runs the Go tests: test-go.sh [--short]. The tests of a package run under the race detector if the package or its tests start goroutines,
# or give functions to servers of NATS and HTTP and to actors, which do. The others run without it: the detector finds nothing there, or
# what the tests of the packages that they use find, and makes arithmetic ten times as slow. `make race` runs all of them under it.
#
# With --short, tests that repeat one promise over many models, instruction sets and kills choose some (testing.Short).
# WITHOUT=FOLDER leaves a package out.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
"") short=() ;;
--short) short=(-short) ;;
*)
  echo "test-go: found $1, expected --short or nothing" >&2
  exit 2
  ;;
esac

concurrent='\bgo (func\b|[A-Za-z_.]+\()|\.Go\(|AfterFunc\(|\.Parallel\(\)|/protoactor-go/|/nats-io/|"net/http(/httptest)?"'

module=$(go list -m)
declare -A concurrent_folders
while read -r file; do
  concurrent_folders[$module/$(dirname "$file")]=1
done < <(git ls-files -co --exclude-standard -z '*.go' | xargs -0 grep -lE "$concurrent")

race=()
plain=()
while read -r package; do
  [ "$package" != "$module/${WITHOUT:-}" ] || continue
  if [ -n "${concurrent_folders[$package]:-}" ]; then race+=("$package"); else plain+=("$package"); fi
done < <(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...)

log=$(mktemp)
trap 'rm -f "$log"' EXIT
flaky=()

# run FLAG... PACKAGE...: tests one package more at a time than there are cores, since many tests wait for time-outs and processes.
# With TEST_AGAIN=1, up to three tests that fail are repeated alone, because those of time-outs can fail on a busy machine. Races,
# panics, time-outs and builds that fail are final.
run() {
  local status=0
  go test -p $(($(nproc) + 1)) -timeout 40m "${short[@]}" "$@" 2>&1 | tee "$log" || status=$?
  [ "$status" -ne 0 ] || return 0
  [ "${TEST_AGAIN:-}" = 1 ] && ! grep -qE 'DATA RACE|^panic: |failed\]$' "$log" || return "$status"
  local tests packages again=("${short[@]}" -count 1 -timeout 40m)
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
