#!/usr/bin/env bash
# Runs the kernel harness of a build tree: test-kernels.sh TREE. The harness itself goes through
# every instruction set that the machine can run.
set -euo pipefail

tree=${1:?usage: test-kernels.sh TREE}
ran=0
for harness in "$tree"/*_test; do
  [ -x "$harness" ] || continue
  "$harness" --gtest_brief=1
  ran=1
done
[ "$ran" = 1 ] || {
  echo "$tree: no test was built" >&2
  exit 1
}
