#!/usr/bin/env bash
# Builds the program of a release: release-build.sh FILE VERSION. The libraries are there (make libs). Other than bin/millrace it
#   - has no symbols and no debug information; tracebacks of Go keep functions and lines, and the build id stays
#   - links libstdc++ and libgcc statically, and the C library of Debian 11: it needs glibc 2.31 or later, and nothing else
#   - has no demo model: packages have it in share/millrace
# SYSROOT=none links the C library of this system.
set -euo pipefail
cd "$(dirname "$0")/.."

file=${1:?usage: release-build.sh FILE VERSION}
version=${2:?usage: release-build.sh FILE VERSION}
commit=$(git rev-parse --short=12 HEAD)
cxx=${CXX:-g++}

# The linker takes the first folder with either form of a library: this one has the static form alone.
static=$PWD/build/static
rm -rf "$static"
mkdir -p "$static"
ln -s "$("$cxx" -print-file-name=libstdc++.a)" "$static/libstdc++.a"
link="-static-libgcc -Wl,--gc-sections -L$static"
if [ "${SYSROOT:-}" != none ]; then
  sysroot=$(scripts/build/sysroot.sh)
  libraries=$sysroot/usr/lib/$("$cxx" -print-multiarch)
  # A newer unwinder needs functions of glibc 2.35.
  ln -s "$sysroot"/usr/lib/gcc/*/10/libgcc_eh.a "$static/libgcc_eh.a"
  ${CC:-gcc} -O2 -c scripts/build/glibc31.c -o "$static/glibc31.o"
  link+=" --sysroot=$sysroot -B$libraries/ -L$libraries -L$sysroot/lib/$("$cxx" -print-multiarch) $static/glibc31.o -lpthread -ldl -lresolv"
fi

export CGO_ENABLED=1 CGO_LDFLAGS="-L$PWD/build/lib"
go build -buildvcs=false -trimpath -tags packaged -o "$file" \
  -ldflags "-s -w -X main.version=$version -X main.commit=$commit -extldflags '$link'" ./cmd/millrace
