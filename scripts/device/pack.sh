#!/usr/bin/env bash
# Makes build/device/millrace-cuda.tar.xz, what run.sh needs on a machine with an NVIDIA GPU that has no compiler and
# no clone: pack.sh [--no-build] [--fixtures] [--backend cuda].
#   --no-build   packs what is built
#   --fixtures   with testdata and the demo model, which run.sh else takes from the clone that it is in
#   --backend B  the optional backend to pack; cpu: none, to try the scripts without one
set -euo pipefail
cd "$(dirname "$0")/../.."

limit=30000000
build=1 fixtures=0 backend=cuda
while [ $# -gt 0 ]; do
  case $1 in
    --no-build) build=0 ;;
    --fixtures) fixtures=1 ;;
    --backend)
      backend=${2:?pack.sh: --backend: found nothing, expected a backend}
      shift
      ;;
    *)
      echo "pack.sh: found $1, expected --no-build, --fixtures or --backend B" >&2
      exit 2
      ;;
  esac
  shift
done

out=build/device/millrace-cuda.tar.xz
tree=build/device/millrace
rm -rf "$tree"
mkdir -p "$tree/bin" "$tree/build/lib" "$tree/compute/device" "$tree/scripts/device"

if [ $build = 1 ]; then
  targets=(libs)
  [ "$backend" = cpu ] || targets+=("$backend")
  make "${targets[@]}"
  scripts/build/kernels.sh test
fi
commit=$(git describe --always --dirty)
export CGO_ENABLED=1 CGO_LDFLAGS="-L$PWD/build/lib"
flags="-s -w -X main.version=device -X main.commit=$commit"
# The demo model is not in the program, but beside it.
go build -buildvcs=false -tags packaged -ldflags "$flags" -o "$tree/bin/millrace" ./cmd/millrace
go build -buildvcs=false -ldflags "-s -w" -o "$tree/bin/randmodel" ./benchmarks/randmodel
go test -c -buildvcs=false -ldflags "-s -w" -o "$tree/compute/device/device.test" ./compute/device
strip -o "$tree/bin/millrace_kernels_test" build/kernels/millrace_kernels_test
[ "$backend" = cpu ] || strip --strip-unneeded -o "$tree/build/lib/libmillrace_$backend.so" "build/lib/libmillrace_$backend.so"
cp scripts/device/*.sh scripts/device/*.py "$tree/scripts/device/"
echo "$commit" >"$tree/commit"
if [ $fixtures = 1 ]; then
  mkdir -p "$tree/models"
  cp -r testdata "$tree/testdata"
  cp -r models/tiny-chat "$tree/models/tiny-chat"
fi

tar -C "$tree" --sort=name --owner=0 --group=0 -cf - . | xz -T0 --x86 --lzma2=preset=6,dict=64MiB >"$out"
size=$(stat -c %s "$out")
echo "$out: $size bytes, commit $commit"
if [ "$size" -ge $limit ] && [ $fixtures = 0 ]; then
  echo "pack.sh: found $size bytes, expected fewer than $limit" >&2
  exit 1
fi
