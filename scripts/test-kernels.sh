#!/usr/bin/env bash
# Runs the kernel harness of a build tree: test-kernels.sh TREE. The harness itself goes through
# every instruction set that the machine can run. Its tests are split over as many processes as there
# are cores: most of them use one.
set -euo pipefail

harness=${1:?usage: test-kernels.sh TREE}/millrace_kernels_test
[ -x "$harness" ] || {
  echo "$harness: no test was built" >&2
  exit 1
}

export GTEST_TOTAL_SHARDS
GTEST_TOTAL_SHARDS=$(nproc)
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
shards=()
for ((i = 0; i < GTEST_TOTAL_SHARDS; i++)); do
  GTEST_SHARD_INDEX=$i "$harness" --gtest_brief=1 >"$logs/$i" 2>&1 &
  shards+=($!)
done
failed=0
for i in "${!shards[@]}"; do
  wait "${shards[i]}" || failed=1
  cat "$logs/$i"
done
exit "$failed"
