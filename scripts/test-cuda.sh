#!/usr/bin/env bash
# Runs the kernel harness on the CUDA backend: test-cuda.sh [gtest arguments]. On a machine without an NVIDIA driver
# the emulator of kernels/cuda/emulator takes its place, which is slow: it runs a part of the tests. What is not run is
# printed. MILLRACE_CUDA_TEST=emulator takes the emulator in any case.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
emulator=$root/build/cuda-emulator
export MILLRACE_BACKEND_LIBRARY=$root/build/lib/libmillrace_cuda.so
# Promises of the CPU backend alone: its threads, its instruction sets' names and hashes, its mappings, packed weights
# (which this backend refuses). And those of a device whose allocations are bounded.
not_ours="Numerics.Programs:ThreadPool.*:*PackedWeights.*:DeviceTest.SaysWhatItRuns:DeviceTest.UnknownInstructionSetsAreRefused:*.MoreSlabsThanMappingsAreRefusedWithTheWayOut/*:SyclThreads.*:SyclMemory.ATensorThatCannotBeAllocatedIsRefusedByItsOp:SyclMemory.SlabsInManyAllocationsGiveTheSameBits"
only=
echo "NOT TESTED here, promises of other backends: $not_ours"

if [ "${MILLRACE_CUDA_TEST:-}" = emulator ] || ! [ -e /dev/nvidiactl ]; then
  "$root/scripts/build/own-tree.sh" "$emulator" "$root/kernels/cuda/emulator"
  generator=()
  if [ ! -f "$emulator/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
  cmake -S "$root/kernels/cuda/emulator" -B "$emulator" "${generator[@]}" -DMILLRACE_TESTS=ON >/dev/null
  cmake --build "$emulator" --parallel "$(nproc)" | { grep -vE '^\[|^ninja: no work' || true; }
  "$emulator/emulator_test" --gtest_brief=1 2>/dev/null # it provokes faults, which are reported there
  export LD_LIBRARY_PATH=$emulator${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  # The emulator keeps what it compiles; what this backend keeps of it names files of another emulator.
  export XDG_CACHE_HOME=$emulator/cache
  rm -rf "$XDG_CACHE_HOME/millrace/cuda"
  # Most of the time goes to the compiler of device code: tests that take few kinds of heads, on the device's best way.
  only="Embed.*:Norm.*:SelectRows.*:LinearOp.*:Attention.EveryNumberOfRows*:Attention.EveryContext*:Program.*:DeviceTest.*:MappedKvMemory.*:SyclMemory.*:Backends/BeamTest.*/mma:Cpu/CascadeOn.*ManyKvHeads*/mma:Cpu/CascadeOn.GroupsThat*/mma:Cpu/CascadeOn.APrefixIs*/mma:Backends/DrawTest.*:Backends/Kv.*:Backends/StepTest.*"
  export MILLRACE_ISA=${MILLRACE_ISA:-mma}
  echo "TESTED on the emulator: $only"
fi

export GTEST_TOTAL_SHARDS
GTEST_TOTAL_SHARDS=$(nproc)
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
shards=()
for ((i = 0; i < GTEST_TOTAL_SHARDS; i++)); do
  GTEST_SHARD_INDEX=$i "$root/build/kernels/millrace_kernels_test" --gtest_brief=1 \
    "--gtest_filter=$only-$not_ours" "$@" >"$logs/$i" 2>&1 &
  shards+=($!)
done
failed=0
for i in "${!shards[@]}"; do
  wait "${shards[i]}" || failed=1
  cat "$logs/$i"
done
exit "$failed"
