#!/usr/bin/env bash
# Runs the kernel harness on the SYCL backend, on the device that it chooses by itself: test-sycl.sh
# [gtest arguments]. What the machine cannot run is printed.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
export MILLRACE_BACKEND_LIBRARY=$root/build/lib/libmillrace_sycl.so
# Promises of the CPU backend alone: its thread count, its instruction sets' names, its mappings.
cpu_only="DeviceTest.SaysWhatItRuns:DeviceTest.UnknownInstructionSetsAreRefused:*.MoreSlabsThanMappingsAreRefusedWithTheWayOut/*"
echo "NOT TESTED here, promises of the CPU backend: $cpu_only"
exec "$root/build/kernels/millrace_kernels_test" --gtest_brief=1 "--gtest_filter=-$cpu_only" "$@"
