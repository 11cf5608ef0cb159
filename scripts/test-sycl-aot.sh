#!/usr/bin/env bash
# Checks what MILLRACE_SYCL_AOT does (kernels/sycl/aot.cmake). With icpx in the PATH it compiles all device code ahead of
# time. Without it, what can be known: the option's refusals, what it would run, and that device code
# compiles for the host too, as icpx compiles it beside the device (its device half is make sycl-isa).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
runtime=$("$here/build/sycl.sh" runtime)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# configure FOLDER OPTION...: CMake's output, and its status.
configure() {
  local tree=$1
  shift
  cmake -S "$root/kernels/sycl" -B "$work/$tree" -DMILLRACE_SYCL_ROOT="$runtime" "$@" 2>&1
}

# refused TEXT OPTION...: the configuration fails, and says so.
refused() {
  local text=$1 out
  shift
  if out=$(configure refused "$@"); then
    echo "test-sycl-aot: cmake $* was taken, expected: $text" >&2
    return 1
  fi
  out=$(tr -s ' \n' ' ' <<<"$out") # CMake breaks lines
  [[ $out == *"$text"* ]] || {
    echo "test-sycl-aot: cmake $* says \"$out\", expected: $text" >&2
    return 1
  }
}

if command -v icpx >/dev/null; then
  configure real "-DMILLRACE_SYCL_AOT=pvc;dg2"
  cmake --build "$work/real" --target millrace_sycl_aot --parallel "$(nproc)"
  exit 0
fi
echo "NOT TESTED here: the compilation by icpx, which is not installed"

refused "needs Intel's compiler icpx" "-DMILLRACE_SYCL_AOT=pvc"

# A stand-in that writes its arguments to the output file.
mkdir "$work/bin"
cat >"$work/bin/icpx" <<'STANDIN'
#!/usr/bin/env bash
out=${*: -1}
[ -s "${@: -3:1}" ] || { echo "icpx: no source in $*" >&2; exit 1; }
echo "$*" >"$out"
STANDIN
chmod +x "$work/bin/icpx"
icpx=-DMILLRACE_ICPX=$work/bin/icpx
refused 'names "arc", expected pvc, dg2 or both' "-DMILLRACE_SYCL_AOT=arc" "$icpx"
if ! configure standin "-DMILLRACE_SYCL_AOT=pvc;dg2" "$icpx" >"$work/log" ||
  ! cmake --build "$work/standin" --target millrace_sycl_aot >>"$work/log"; then
  cat "$work/log" >&2
  exit 1
fi
objects=("$work"/standin/aot/*.so)
[ ${#objects[@]} = 84 ] || { echo "test-sycl-aot: ${#objects[@]} objects, expected 84" >&2; exit 1; }
for want in "pvc_bf16_common:-fsycl-targets=intel_gpu_pvc .*-DMR_BF16=1 -DMR_LANES=16 -DMR_XMX=1 " \
  "dg2_f16_attention_80_kv4:-fsycl-targets=intel_gpu_dg2_g10 .*-DMR_BF16=0 -DMR_LANES=8 -DMR_XMX=1 -DMR_HEAD_DIM=80 -DMR_KV_BITS=4 -DMR_QUERIES=1 "; do
  grep -q -- "${want#*:}" "$work/standin/aot/millrace_${want%%:*}.so" || {
    echo "test-sycl-aot: ${want%%:*} is compiled by: $(cat "$work/standin/aot/millrace_${want%%:*}.so")" >&2
    exit 1
  }
done

# The host's half, by clang's own front end: icpx is built on it.
clang=$root/build/tools/clang-tidy-23.1.4
[ -x "$clang/bin/clang-tidy" ] || {
  python3 -m venv "$clang"
  "$clang/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$root/scripts/build/clang-tidy.txt"
}
for file in "$work"/standin/aot/{common,experts}.cpp "$root"/kernels/gpu/device/{attention,dequantize,quantized,states}.cpp; do
  for variant in "1 16 8 16" "0 8 2 8" "1 8 1 4"; do
    read -r bf16 lanes queries kv_bits <<<"$variant"
    "$clang/bin/clang-tidy" --quiet --allow-no-checks --checks='-*' "$file" -- -std=c++20 -Wall -Werror -iquote "$root/kernels/gpu" \
      -isystem "$runtime/include" -DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING -DMR_BF16="$bf16" -DMR_LANES="$lanes" -DMR_XMX=1 \
      -DMR_HEAD_DIM=80 -DMR_KV_BITS="$kv_bits" -DMR_QUERIES="$queries"
  done
done
echo "device code: the option's commands and the host's half are as expected"
