#!/usr/bin/env bash
# Runs the kernel harness on the SYCL backend, on the device that it chooses by itself: test-sycl.sh
# [gtest arguments]. What the machine cannot run is printed. Most of the time the compiler of device
# code is at work, on one core: the tests are split over as many processes as there are cores.
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

export GTEST_TOTAL_SHARDS
GTEST_TOTAL_SHARDS=$(nproc)
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
shards=()
for ((i = 0; i < GTEST_TOTAL_SHARDS; i++)); do
  GTEST_SHARD_INDEX=$i "$root/build/kernels/millrace_kernels_test" --gtest_brief=1 \
    "--gtest_filter=-$cpu_only:$elsewhere:$twice" "$@" >"$logs/$i" 2>&1 &
  shards+=($!)
done
failed=0
for i in "${!shards[@]}"; do
  wait "${shards[i]}" || failed=1
  cat "$logs/$i"
done
# What a processor without products of 16 bits gets, whatever this one has.
echo "products of floats:"
env -u GTEST_TOTAL_SHARDS ONEDNN_MAX_CPU_ISA=AVX2 "$root/build/kernels/millrace_kernels_test" --gtest_brief=1 \
  "--gtest_filter=Backends/Invariance.*/simd_onednn:LinearOp.EveryShape*:LinearOp.EveryEnding*:SyclMemory.Tied*:SyclLinear.Without*" \
  >"$logs/floats" 2>&1 || failed=1
cat "$logs/floats"
exit "$failed"
