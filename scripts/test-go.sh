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
done < <({
  # Those that take longest begin first, or else the last one runs alone.
  printf "$module/%s\n" e2e actors/node cmd/millrace lab/eval
  go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...
} | awk '!seen[$0]++')

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
flaky=()

# again GROUP STATUS FLAG...: with TEST_AGAIN=1, up to three tests of a group that failed are repeated alone, because those of time-outs can
# fail on a busy machine. Races, panics, time-outs and builds that fail are final.
again() {
  local log=$logs/$1 status=$2 tests packages
  shift 2
  [ "$status" -ne 0 ] || return 0
  [ "${TEST_AGAIN:-}" = 1 ] && ! grep -qE 'DATA RACE|^panic: |failed\]$' "$log" || return "$status"
  mapfile -t tests < <(sed -nE 's/^--- FAIL: ([^ ]+) .*/\1/p' "$log" | sort -u)
  [ ${#tests[@]} -ge 1 ] && [ ${#tests[@]} -le 3 ] || return "$status"
  mapfile -t packages < <(sed -nE 's/^FAIL\s+(\S+)\s.*/\1/p' "$log")
  echo "test-go: again, alone: ${tests[*]}"
  go test -count 1 -timeout 40m "${short[@]}" "$@" -run "^($(IFS='|' && echo "${tests[*]}"))\$" "${packages[@]}" || return "$status"
  flaky+=("${tests[@]}")
}

# Many tests wait for time-outs and processes, so one package more is tested at a time than there are cores. Both groups run side by side;
# what the smaller one prints comes at the end.
go test -p 1 -timeout 40m "${short[@]}" "${plain[@]}" >"$logs/plain" 2>&1 &
beside=$!
raced=0 unraced=0
go test -p "$(nproc)" -timeout 40m "${short[@]}" -race "${race[@]}" 2>&1 | tee "$logs/race" || raced=$?
wait "$beside" || unraced=$?
cat "$logs/plain"

failed=0 # one group's failure does not hide the other's
again race "$raced" -race || failed=$?
again plain "$unraced" || failed=$?
[ ${#flaky[@]} -eq 0 ] || echo "test-go: FLAKY, failed once and then passed: ${flaky[*]}"
exit "$failed"
