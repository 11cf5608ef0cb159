#!/usr/bin/env bash
# Builds the C++ kernels: kernels.sh release | test | sanitize.
#   release   build/lib/libmillrace_kernels.a, which the Go package compute/device links
#   test      the same with the GoogleTest harness, build/kernels/millrace_kernels_test
#   sanitize  the harness under AddressSanitizer and UBSan, in build/kernels-sanitize
# Ninja where it is installed, else make.
set -euo pipefail

variant=${1:?usage: kernels.sh release|test|sanitize}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
tree=$root/build/kernels
options=(-DMILLRACE_BENCH=OFF)
# Another compiler's new warnings are ours to see, not a newcomer's to stumble over.
[ -z "${CI:-}" ] || options+=(-DMILLRACE_WERROR=ON)
# Another clone of the same sources compiles nothing again.
if command -v ccache >/dev/null; then
  options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
fi
targets=(--target millrace_kernels)

case "$variant" in
  release)
    # Tests need GoogleTest, which whoever only builds may not have. A tree with tests keeps them.
    [ -f "$tree/with-tests" ] || options+=(-DMILLRACE_TESTS=OFF)
    ;;
  test)
    options+=(-DMILLRACE_TESTS=ON)
    targets=()
    ;;
  sanitize)
    tree=$root/build/kernels-sanitize
    options+=(-DMILLRACE_TESTS=ON "-DMILLRACE_SANITIZE=address;undefined")
    targets=()
    ;;
  *)
    echo "kernels.sh: unknown variant $variant" >&2
    exit 2
    ;;
esac

# Targets that are made side by side wait for each other here: two builds of a tree would write the same files.
mkdir -p "$root/build"
exec 9>"$tree.lock"
flock 9

"$here/own-tree.sh" "$tree" "$root/kernels"

# configured: the generator's file is the last thing that a configuration writes.
configured() {
  [ -f "$tree/build.ninja" ] || [ -f "$tree/Makefile" ]
}

if ! configured || { [ "$variant" != release ] && [ ! -f "$tree/with-tests" ]; }; then
  "$here/check-tools.sh" cxx cmake
  [ "$variant" = release ] || "$here/check-tools.sh" gtest
  generator=()
  if ! configured; then
    if command -v ninja >/dev/null; then generator=(-G Ninja); else generator=(-G "Unix Makefiles"); fi
  fi
  mkdir -p "$tree"
  cmake -S "$root/kernels" -B "$tree" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release "${options[@]}" >"$tree/configure.log" 2>&1 || {
    cat "$tree/configure.log" >&2
    exit 1
  }
  [ "$variant" = release ] || touch "$tree/with-tests"
fi

quiet=()
[ ! -f "$tree/build.ninja" ] || quiet=(--quiet)
cmake --build "$tree" --parallel "$(nproc)" "${targets[@]}" -- "${quiet[@]}" |
  { grep -vx 'ninja: no work to do.' || true; }

[ "$variant" != sanitize ] || exit 0
cmake --install "$tree" --prefix "$root/build" >/dev/null # copies what is new

# Go's build cache does not look into static libraries. A header with the archive's hash in the
# package's folder is part of its build input, so that new kernels are linked anew.
id=$(sha256sum "$root/build/lib/libmillrace_kernels.a" | cut -c1-32)
header=$root/compute/device/kernels_id.h
line="#define MILLRACE_KERNELS_ID \"$id\""
[ "$(cat "$header" 2>/dev/null)" = "$line" ] || echo "$line" >"$header"
