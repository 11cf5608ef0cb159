#!/usr/bin/env bash
# Fetches oneDNN (headers and libdnnl.so, GNU OpenMP build) into build/onednn, from the wheels
# that its makers publish. Nothing is installed. MILLRACE_ONEDNN=DIR names another copy to build
# with, as does a system-wide oneDNN 3.
set -euo pipefail

version=2023.2.0 # oneDNN 3.2, the last one published in this form
root=$(cd "$(dirname "$0")/../.." && pwd)
target=$root/build/onednn
wheels=$target/wheels

[ ! -f "$target/fetched" ] || exit 0
command -v python3 >/dev/null || {
  echo "millrace: python3 is missing: install it (apt install python3-pip), or name an oneDNN 3 with MILLRACE_ONEDNN=DIR" >&2
  exit 1
}

rm -rf "$target"
mkdir -p "$wheels"
python3 -m pip download --quiet --no-deps --dest "$wheels" \
  "onednn-cpu-gomp==$version" "onednn-devel-cpu-gomp==$version"
for wheel in "$wheels"/*.whl; do python3 -m zipfile -e "$wheel" "$wheels"; done
mkdir -p "$target/lib"
cp -r "$wheels"/*.data/data/include "$target/include"
library=$(find "$wheels" -name 'libdnnl.so.3' | head -n 1)
cp "$library" "$target/lib/libdnnl.so.3"
ln -s libdnnl.so.3 "$target/lib/libdnnl.so"
rm -rf "$wheels"
touch "$target/fetched"
echo "oneDNN 3.2: $target"
