#!/usr/bin/env bash
# Builds build/lib/libmillrace_sycl.so, the SYCL backend: sycl.sh [runtime].
# It takes an installed oneAPI (ONEAPI_ROOT, or icpx in the PATH), or else fetches the SYCL runtime,
# its OpenCL CPU device and oneDNN into build/sycl from the wheels that their makers publish.
#   runtime   only fetches or finds the runtime, and prints its folder
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=$root/build/sycl
tree=$root/build/sycl-kernels

# find_onednn RUNTIME: the oneDNN of a runtime's folder, or beside it in a oneAPI; nothing if there is none.
find_onednn() {
  local folder
  for folder in "$1" "$1/../../dnnl/latest"; do
    if [ -e "$folder/include/oneapi/dnnl/dnnl_sycl.hpp" ] && [ -e "$folder/lib/libdnnl.so" ]; then
      (cd "$folder" && pwd)
      return 0
    fi
  done
}

# oneapi: the compiler's folder of an installed oneAPI, if there is one.
oneapi() {
  local folder
  if [ -n "${ONEAPI_ROOT:-}" ] && [ -e "$ONEAPI_ROOT/compiler/latest/lib/libsycl.so" ]; then
    echo "$ONEAPI_ROOT/compiler/latest"
  elif command -v icpx >/dev/null; then
    folder=$(cd "$(dirname "$(readlink -f "$(command -v icpx)")")/.." && pwd)
    [ ! -e "$folder/lib/libsycl.so" ] || echo "$folder"
  fi
}

fetch() {
  local all
  all=$(cat "$here/sycl.txt" "$here/onednn.txt" | sha256sum)
  [ "$(cat "$venv/fetched" 2>/dev/null)" != "$all" ] || return 0
  command -v python3 >/dev/null || {
    echo "millrace: python3 is missing: install it (apt install python3-venv), or oneAPI's compiler" >&2
    exit 1
  }
  echo "SYCL runtime: pip install (once, about 1.5 GB)" >&2
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$here/sycl.txt" >&2
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps -r "$here/onednn.txt" >&2
  echo "$all" >"$venv/fetched"
}

runtime=$(oneapi)
if [ -z "$runtime" ]; then
  fetch
  runtime=$venv
fi
if [ "${1:-}" = runtime ]; then
  echo "$runtime"
  exit 0
fi

"$here/check-tools.sh" cxx cmake
"$here/own-tree.sh" "$tree" "$root/kernels/sycl"
generator=()
if [ ! -f "$tree/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
launcher=()
if command -v ccache >/dev/null; then # another clone of the same sources compiles nothing again
  launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
fi
onednn=$(find_onednn "$runtime")
[ -n "$onednn" ] || echo "no oneDNN with the SYCL runtime found: linear ops run on our own kernels" >&2
rpath=
[ "$runtime" = "$venv" ] || rpath="$runtime/lib;$onednn/lib" # an installed runtime stays where it is
cmake -S "$root/kernels/sycl" -B "$tree" "${generator[@]}" "${launcher[@]}" -DCMAKE_BUILD_TYPE=Release \
  -DMILLRACE_SYCL_ROOT="$runtime" -DMILLRACE_SYCL_ONEDNN="$onednn" -DMILLRACE_SYCL_RPATH="$rpath" >"$tree.log" 2>&1 || {
  cat "$tree.log" >&2
  exit 1
}
cmake --build "$tree" --parallel "$(nproc)" | { grep -vE '^\[|^ninja: no work' || true; }
cmake --install "$tree" --prefix "$root/build" >/dev/null
