#!/usr/bin/env bash
# Runs what pack.sh packed on a machine with an NVIDIA GPU, step by step, and reports: run.sh OUT [options].
# Each step has a time limit and a log in OUT. A step that fails stops none of the others.
#   --only A,B        these steps alone: info, harness, device, goldens, invariance, bench, peer, ops, memcheck
#                     (default: all but memcheck)
#   --budget SECONDS  for all steps together (default 480); later steps get less time, the report is always written
#   --backend B       what computes (default cuda)
#   --tiny            a small random model in place of one of 1.1 billion parameters, to try the script without a GPU
#   --archive FILE    what pack.sh made (default: build/device/millrace-cuda.tar.xz of this clone)
#   --patience N      multiplies the time limits of the steps (default 1)
#   --jobs N          processes of the harness at a time (default: 3/4 of the cores)
# HARNESS_ISAS ("mma simd"), HARNESS_FILTER and HARNESS_EXCLUDE, as of --gtest_filter, choose the harness's tests.
# It needs bash, xz and python3; the steps info and peer need PyTorch and transformers, memcheck needs compute-sanitizer.
# shellcheck disable=SC2317,SC2329 # steps are called by name
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
clone=$(cd "$here/../.." && pwd)
usage() {
  echo "run.sh: $*; usage: run.sh OUT [--only STEP,...] [--budget SECONDS] [--backend B] [--tiny] [--archive FILE] [--patience N] [--jobs N]" >&2
  exit 2
}

# The time limit of each step, in seconds. The steps run in this order.
steps=(info bench peer harness goldens invariance device ops memcheck)
declare -A limits=([info]=75 [harness]=150 [device]=90 [goldens]=60 [invariance]=75 [bench]=90 [peer]=110 [ops]=45 [memcheck]=120)

# The promises of other backends: see scripts/test-cuda.sh.
not_ours='Numerics.Programs:ThreadPool.*:*PackedWeights.*:DeviceTest.SaysWhatItRuns:DeviceTest.UnknownInstructionSetsAreRefused:*.MoreSlabsThanMappingsAreRefusedWithTheWayOut/*'

# ---- Steps. Each runs in a process of its own, with the variables that are exported below.

millrace() { "$WORK/bin/millrace" "$@"; }

# big_model makes a Llama of random weights, once, where files are fast.
big_model() {
  [ ! -e "$BIG/config.json" ] || return 0
  local shape=()
  [ "$TINY" = 0 ] || shape=(--layers 2 --hidden 256 --heads 4 --kv-heads 2 --ffn 512 --vocab 4096)
  local begin=$SECONDS
  "$WORK/bin/randmodel" --tokenizer --out "$BIG" "${shape[@]}"
  echo "random model: $(du -shL "$BIG" | cut -f1) in $((SECONDS - begin)) s"
}

step_info() {
  if command -v nvidia-smi >/dev/null; then nvidia-smi; fi
  millrace doctor --model "$WORK/models/tiny-chat" --backend "$BACKEND" --listen 127.0.0.1:0 --nats-listen 127.0.0.1:0 || true
  python3 "$here/peer.py" limits --out "$VALUES/info.json"
}

step_harness() {
  local library='' isas=('')
  if [ "$BACKEND" != cpu ]; then
    library=$WORK/build/lib/libmillrace_$BACKEND.so
    read -ra isas <<<"${HARNESS_ISAS:-mma simd}"
  fi
  MILLRACE_BACKEND_LIBRARY=$library python3 "$here/harness.py" "$WORK/bin/millrace_kernels_test" \
    --isas "$(IFS=,; echo "${isas[*]}")" --exclude "$not_ours${HARNESS_EXCLUDE:+:$HARNESS_EXCLUDE}" --filter "${HARNESS_FILTER:-*}" --jobs "$JOBS" --out "$VALUES/harness.json"
}

# The Go tests of the device package: logits beside those of transformers, chunking, beams, KV types, sinks.
step_device() {
  TEST_BACKENDS=$BACKEND python3 "$here/check.py" gotest --program "$WORK/compute/device/device.test" --seconds $((LIMIT - 5)) --jobs "$JOBS" \
    --out "$VALUES/device.json"
}

step_goldens() {
  python3 "$here/check.py" goldens --root "$WORK" --backend "$BACKEND" --jobs 4 --out "$VALUES/goldens.json" # each takes half of the memory that is free
}

step_invariance() {
  big_model
  python3 "$here/check.py" invariance --root "$WORK" --backend "$BACKEND" --big "$BIG" --out "$VALUES/invariance.json"
}

step_bench() {
  big_model
  local weights status=0
  for weights in bf16 int4 int8; do
    echo "--- weights $weights"
    millrace bench --model "$BIG" --backend "$BACKEND" --weights "$weights" --packed-weights off --prompt 512 --gen 32 --batch 1,16,64 --repeat 5 --json \
      >"$VALUES/bench.part" || { status=1; continue; }
    cat "$VALUES/bench.part"
    mv "$VALUES/bench.part" "$VALUES/bench-$weights.json"
  done
  return "$status"
}

step_peer() {
  big_model
  python3 "$here/peer.py" peer --model "$BIG" --seconds $((LIMIT - 15)) --out "$VALUES/peer.json"
}

step_ops() {
  big_model
  local weights status=0
  for weights in bf16 int4; do
    echo "--- weights $weights"
    millrace bench --ops --model "$BIG" --backend "$BACKEND" --weights "$weights" --packed-weights off --prompt 512 --batch 1,64 --repeat 5 || status=1
  done
  return "$status"
}

# Off by default: the first thing to run where a kernel fails or gives other values each time.
step_memcheck() {
  local tool
  for tool in memcheck racecheck; do
    compute-sanitizer --tool "$tool" --print-limit 20 "$WORK/bin/millrace" logits --backend "$BACKEND" --model "$WORK/testdata/models/llama-gqa" \
      --tokens 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18 --positions 17 || return 1
  done
}

if [ -n "${DEVICE_STEP:-}" ]; then
  trap 'exit 143' TERM # after the command under way, which gets the signal too
  "step_$DEVICE_STEP"
  exit
fi

# ---- Arguments

[ $# -gt 0 ] || usage "found no folder for the results"
out=$1
shift
only=info,harness,device,goldens,invariance,bench,peer,ops
arguments=$*
budget=480 patience=1 archive=$clone/build/device/millrace-cuda.tar.xz
export BACKEND=cuda TINY=0 JOBS=$(($(nproc) * 3 / 4 + 1))
while [ $# -gt 0 ]; do
  if [ "$1" = --tiny ]; then
    TINY=1
    shift
    continue
  fi
  [ $# -gt 1 ] || usage "$1: found nothing, expected a value"
  case $1 in
    --only) only=$2 ;;
    --budget) budget=$2 ;;
    --backend) BACKEND=$2 ;;
    --archive) archive=$2 ;;
    --patience) patience=$2 ;;
    --jobs) JOBS=$2 ;;
    *) usage "found $1" ;;
  esac
  shift 2
done
for step in ${only//,/ }; do
  [ -n "${limits[$step]:-}" ] || usage "--only: found $step"
done
mkdir -p "$out"
out=$(cd "$out" && pwd)

# ---- Unpack

begin=$SECONDS
WORK=$(mktemp -d)
BIG=$WORK/big
if [ -w /dev/shm ] && [ "$(df --output=avail -k /dev/shm | tail -1)" -gt 8000000 ]; then BIG=$(mktemp -d /dev/shm/millrace.XXXXXX)/model; fi
export WORK BIG VALUES=$WORK/values
trap 'rm -rf "$WORK"; case $BIG in /dev/shm/*) rm -rf "$(dirname "$BIG")" ;; esac' EXIT
mkdir -p "$VALUES"
if [ -e "$clone/bin/randmodel" ]; then # unpacked already
  cp -rs "$clone/." "$WORK/"
else
  tar -C "$WORK" --no-same-owner -xJf "$archive"
fi
# Fixtures of the clone, where the archive has none.
for folder in testdata models/tiny-chat; do
  [ -e "$WORK/$folder" ] || { mkdir -p "$(dirname "$WORK/$folder")" && ln -s "$clone/$folder" "$WORK/$folder"; }
done
mkdir -p "$WORK/share/millrace"
ln -sfn "$WORK/models/tiny-chat" "$WORK/share/millrace/tiny-chat"
echo "unpacked in $((SECONDS - begin)) s: commit $(cat "$WORK/commit")"

# The driver and NVRTC are where the loader does not look in some images.
known=$(ldconfig -p 2>/dev/null || true)
extra=
for pair in libcuda.so.1:/usr/local/nvidia/lib64 libcuda.so.1:/usr/local/nvidia/lib libnvrtc.so.13:/usr/local/cuda/lib64 \
  libnvrtc.so.13:"$(python3 -c 'import importlib.util as u; s = u.find_spec("nvidia"); print(list(s.submodule_search_locations)[0] if s else "")' 2>/dev/null)/cu13/lib"; do
  library=${pair%%:*} folder=${pair#*:}
  if [[ $known != *"$library "* ]] && [ -e "$folder/$library" ]; then extra+=${extra:+:}$folder; fi
done
[ -z "$extra" ] || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$extra
# Compiled code is kept for the run, not in the user's folders.
export XDG_CACHE_HOME=$WORK/cache CUDA_CACHE_PATH=$WORK/cache/nv CUDA_CACHE_MAXSIZE=4294967296 PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
# The environment may have settings of Millrace; a run has none but its own.
for name in $(compgen -e | grep '^MILLRACE_' || true); do unset "$name"; done

# ---- Run

date=$(date -u +%Y-%m-%dT%H:%M:%S+00:00)
report() {
  python3 "$here/report.py" --values "$VALUES" --out "$out" --model "$BIG" --backend "$BACKEND" --date "$date" --arguments "$arguments" --commit "$(cat "$WORK/commit")" || true
}

: >"$VALUES/steps.txt"
failed=0
for step in "${steps[@]}"; do
  [[ ,$only, == *,$step,* ]] || continue
  export LIMIT=$((limits[$step] * patience))
  left=$((budget - (SECONDS - begin)))
  [ "$LIMIT" -le $left ] || LIMIT=$left
  if [ "$LIMIT" -lt 5 ]; then
    echo "$step skipped 0" >>"$VALUES/steps.txt"
    failed=1
    continue
  fi
  echo "=== $step (at most $LIMIT s)"
  from=$SECONDS result=ok
  status=0
  DEVICE_STEP=$step timeout --kill-after 10 "$LIMIT" bash "$here/run.sh" >"$out/$step.log" 2>&1 </dev/null || status=$?
  case $status in
    0) ;;
    124 | 137) result=time-limit ;;
    *) result=failed ;;
  esac
  [ $result = ok ] || failed=1
  tail -n 12 "$out/$step.log" | cut -c1-300
  echo "=== $step: $result after $((SECONDS - from)) s"
  echo "$step $result $((SECONDS - from))" >>"$VALUES/steps.txt"
  report >/dev/null # what is killed later has reported so far
done
report
echo "all: $((SECONDS - begin)) s"
exit $failed
