#!/usr/bin/env bash
# Runs the kernel harness of a build tree: test-kernels.sh TREE [PARTS]. The harness itself goes through
# every instruction set that the machine can run. Its tests are split over as many processes as there
# are cores: most of them use one. With PARTS only every PARTS-th test runs.
set -euo pipefail

harness=${1:?usage: test-kernels.sh TREE [PARTS]}/millrace_kernels_test
parts=${2:-1}
[ -x "$harness" ] || {
  echo "$harness: no test was built" >&2
  exit 1
}

export GTEST_TOTAL_SHARDS
processes=$(nproc)
GTEST_TOTAL_SHARDS=$((processes * parts))
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
shards=()
for ((i = 0; i < processes; i++)); do
  GTEST_SHARD_INDEX=$((i * parts)) "$harness" --gtest_brief=1 >"$logs/$i" 2>&1 &
  shards+=($!)
done
failed=0
for i in "${!shards[@]}"; do
  wait "${shards[i]}" || failed=1
  cat "$logs/$i"
done
[ "$parts" -eq 1 ] || echo "test-kernels: one of $parts parts of the tests ran, every $parts-th test"
exit "$failed"
