#!/usr/bin/env bash
# Builds the C++ kernels: kernels.sh release | test | sanitize.
#   release   build/lib/libmillrace_kernels.a, which the Go package compute/device links
#   test      the same flags with the GoogleTest harness, build/kernels-test
#   sanitize  the harness under AddressSanitizer and UBSan, build/kernels-sanitize
# Ninja where it is installed, else make.
set -euo pipefail

variant=${1:?usage: kernels.sh release|test|sanitize}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

case "$variant" in
  release)
    tree=$root/build/kernels
    options=(-DMILLRACE_TESTS=OFF "-DCMAKE_ARCHIVE_OUTPUT_DIRECTORY=$root/build/lib")
    ;;
  test)
    tree=$root/build/kernels-test
    options=(-DMILLRACE_TESTS=ON)
    ;;
  sanitize)
    tree=$root/build/kernels-sanitize
    options=(-DMILLRACE_TESTS=ON -DMILLRACE_SANITIZE=ON)
    ;;
  *)
    echo "kernels.sh: unknown variant $variant" >&2
    exit 2
    ;;
esac

if [ ! -f "$tree/build.ninja" ] && [ ! -f "$tree/Makefile" ]; then
  "$here/check-tools.sh" cxx cmake
  [ "$variant" = release ] || "$here/check-tools.sh" gtest
  if command -v ninja >/dev/null; then generator=Ninja; else generator="Unix Makefiles"; fi
  cmake -S "$root/kernels" -B "$tree" -G "$generator" -DCMAKE_BUILD_TYPE=Release "${options[@]}"
fi

# The generator's own list of commands is noise when there is nothing to do.
quiet=()
[ -f "$tree/build.ninja" ] && quiet=(--quiet)
cmake --build "$tree" --parallel "$(nproc)" -- "${quiet[@]}"

[ "$variant" = release ] || exit 0

# Go's build cache does not look into static libraries. A header with the archive's hash in the
# package's folder is part of its build input, so that new kernels are linked anew.
id=$(sha256sum "$root/build/lib/libmillrace_kernels.a" | cut -c1-32)
header=$root/compute/device/kernels_id.h
line="#define MILLRACE_KERNELS_ID \"$id\""
if [ "$(cat "$header" 2>/dev/null)" != "$line" ]; then
  mkdir -p "$(dirname "$header")"
  echo "$line" >"$header"
fi
