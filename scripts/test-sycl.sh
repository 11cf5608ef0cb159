#!/usr/bin/env bash
# Runs the kernel harness on the SYCL backend, on the device that it chooses by itself: test-sycl.sh
# [gtest arguments]. What the machine cannot run is printed.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
export MILLRACE_BACKEND_LIBRARY=$root/build/lib/libmillrace_sycl.so
exec "$root/build/kernels/millrace_kernels_test" --gtest_brief=1 "$@"
