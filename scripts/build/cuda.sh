#!/usr/bin/env bash
# Builds build/lib/libmillrace_cuda.so, the CUDA backend: cuda.sh [nvrtc].
# The compiler of device code, NVRTC, is fetched into build/cuda from the wheel that NVIDIA publishes. Neither a GPU
# nor a driver nor a CUDA toolkit is needed.
#   nvrtc   only fetches the compiler, and prints its path
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=$root/build/cuda
tree=$root/build/cuda-kernels
nvrtc=$venv/nvrtc/libnvrtc.so.13 # driver.cpp searches here

fetch() {
  local all
  all=$(sha256sum <"$here/cuda.txt")
  [ "$(cat "$venv/fetched" 2>/dev/null)" != "$all" ] || return 0
  command -v python3 >/dev/null || {
    echo "millrace: python3 is missing: install it (apt install python3-venv)" >&2
    exit 1
  }
  echo "NVRTC: pip install (once, about 90 MB)" >&2
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps -r "$here/cuda.txt" >&2
  (cd "$venv" && ln -s lib/python3.*/site-packages/nvidia/cu13/lib nvrtc)
  echo "$all" >"$venv/fetched"
}

fetch
if [ "${1:-}" = nvrtc ]; then
  echo "$nvrtc"
  exit 0
fi

"$here/check-tools.sh" cxx cmake
"$here/own-tree.sh" "$tree" "$root/kernels/cuda"
generator=()
if [ ! -f "$tree/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
launcher=()
if command -v ccache >/dev/null; then # another clone of the same sources compiles nothing again
  launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
fi
cmake -S "$root/kernels/cuda" -B "$tree" "${generator[@]}" "${launcher[@]}" -DCMAKE_BUILD_TYPE=Release \
  -DMILLRACE_CUDA_NVRTC="$nvrtc" >"$tree.log" 2>&1 || {
  cat "$tree.log" >&2
  exit 1
}
cmake --build "$tree" --parallel "$(nproc)" | { grep -vE '^\[|^ninja: no work' || true; }
cmake --install "$tree" --prefix "$root/build" >/dev/null
