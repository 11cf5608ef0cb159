#!/usr/bin/env bash
# Runs the kernel harness on the SYCL backend, on the device that it chooses by itself: test-sycl.sh
# [gtest arguments]. What the machine cannot run is printed. Most of the time the compiler of device
# code is at work, on one core: as many processes as there are cores run parts of the tests, several each, because some tests take minutes.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
export MILLRACE_BACKEND_LIBRARY=$root/build/lib/libmillrace_sycl.so
# Promises of the CPU backend alone: its threads, its instruction sets' names and hashes, its mappings, packed weights
# (which the SYCL backend refuses).
cpu_only="Numerics.Programs:ThreadPool.*:*PackedWeights.*:DeviceTest.SaysWhatItRuns:DeviceTest.UnknownInstructionSetsAreRefused:*.MoreSlabsThanMappingsAreRefusedWithTheWayOut/*"
# make test-kernels runs these: ref alone, and the kernels of the CPU's instruction sets.
elsewhere="*/ref*:Ref/*:Linear/EveryKind.*"
# These tests have attention alone. "simd" gives it the work-groups of a GPU: other sums, and the same readers of codes.
twice="Cpu/AttentionOn.*/simd_int*:Cpu/BeamPiecesTest.*/simd_int*:Cpu/CascadeOn.*/simd_int*:Cpu/Shapes.*/simd_int*"
echo "NOT TESTED here, promises of the CPU backend: $cpu_only; run by make test-kernels: $elsewhere; run with oneDNN: $twice"

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export GTEST_TOTAL_SHARDS logs
failed=0
GTEST_TOTAL_SHARDS=$((4 * $(nproc)))
# shellcheck disable=SC2016 # the inner shell expands it
seq 0 $((GTEST_TOTAL_SHARDS - 1)) | xargs -P "$(nproc)" -I{} sh -c 'GTEST_SHARD_INDEX={} exec "$@" >"$logs/{}" 2>&1' sh \
  "$root/build/kernels/millrace_kernels_test" --gtest_brief=1 "--gtest_filter=-$cpu_only:$elsewhere:$twice" "$@" || failed=1
cat "$logs"/*
# What a processor without products of 16 bits gets, whatever this one has.
echo "products of floats:"
env -u GTEST_TOTAL_SHARDS ONEDNN_MAX_CPU_ISA=AVX2 "$root/build/kernels/millrace_kernels_test" --gtest_brief=1 \
  "--gtest_filter=Backends/Invariance.*/simd_onednn:LinearOp.EveryShape*:LinearOp.EveryEnding*:SyclMemory.Tied*:SyclLinear.Without*" \
  >"$logs/floats" 2>&1 || failed=1
cat "$logs/floats"
exit "$failed"
