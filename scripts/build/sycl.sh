#!/usr/bin/env bash
# Builds build/lib/libmillrace_sycl.so, the SYCL backend: sycl.sh [runtime].
# It takes an installed oneAPI (ONEAPI_ROOT, or icpx in the PATH), or else fetches the SYCL runtime
# and its OpenCL CPU device into build/sycl from the wheels that their makers publish.
#   runtime   only fetches or finds the runtime, and prints its folder
set -euo pipefail

# libur_adapter_opencl.so, which the CPU device needs, is not in every version of these wheels.
wheels=(intel-sycl-rt==2026.1.2 intel-opencl-rt==2026.1.2 intel-cmplr-lib-ur==2026.1.2)
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=$root/build/sycl
tree=$root/build/sycl-kernels

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
  [ "$(cat "$venv/fetched" 2>/dev/null)" != "${wheels[*]}" ] || return 0
  command -v python3 >/dev/null || {
    echo "millrace: python3 is missing: install it (apt install python3-venv), or oneAPI's compiler" >&2
    exit 1
  }
  echo "SYCL runtime: pip install ${wheels[*]} (once, about 1.5 GB)" >&2
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "${wheels[@]}" >&2
  echo "${wheels[*]}" >"$venv/fetched"
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
generator=()
if [ ! -f "$tree/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
rpath=
[ "$runtime" = "$venv" ] || rpath=$runtime/lib # an installed runtime stays where it is
cmake -S "$root/kernels/sycl" -B "$tree" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release \
  -DMILLRACE_SYCL_ROOT="$runtime" -DMILLRACE_SYCL_RPATH="$rpath" >"$tree.log" 2>&1 || {
  cat "$tree.log" >&2
  exit 1
}
cmake --build "$tree" --parallel "$(nproc)" | { grep -vE '^\[|^ninja: no work' || true; }
cmake --install "$tree" --prefix "$root/build" >/dev/null
