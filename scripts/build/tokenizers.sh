#!/usr/bin/env bash
# Builds build/lib/libtokenizers.a from the Rust sources inside the Go module
# github.com/daulet/tokenizers, so that the archive and its Go package are of one version.
#
# The module takes tiktoken-rs from a git branch, which cannot be locked to a release; the build
# copy takes the released 0.9 instead, and leaves out the benchmarks' dependencies. The lock file
# beside this script pins everything; after a new module version, refresh it with
#   tokenizers.sh --update-lock
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
module=github.com/daulet/tokenizers
lock=$here/tokenizers.Cargo.lock
copy=$root/build/tokenizers
archive=$root/build/lib/libtokenizers.a
stamp=$copy/built

cd "$root"
go mod download "$module"
read -r version source < <(go list -m -f '{{.Version}} {{.Dir}}' "$module")

id="$version $(cat "$lock" "$0" | sha256sum | cut -c1-16)"
if [ "${1:-}" != --update-lock ] && [ -f "$archive" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$id" ]; then
  touch "$archive" # newer than go.mod again, so that make does not ask a second time
  exit 0
fi

"$here/check-tools.sh" cargo cxx
mkdir -p "$copy" "$root/build/lib"
rm -rf "$copy/src"
cp -r "$source/src" "$copy/src"
chmod -R u+w "$copy/src" # the module cache is read-only
sed -e 's|^tiktoken-rs = .*|tiktoken-rs = "0.9"|' -e '/^\[dev-dependencies\]/,$d' "$source/Cargo.toml" >"$copy/Cargo.toml"
cp "$lock" "$copy/Cargo.lock"

if [ "${1:-}" = --update-lock ]; then
  (cd "$copy" && cargo update --workspace)
  cp "$copy/Cargo.lock" "$lock"
  exit 0
fi

echo "tokenizers $version: cargo build (a few minutes, once)"
(cd "$copy" && cargo build --release --locked --lib)
cp "$copy/target/release/libtokenizers.a" "$archive.new"
mv "$archive.new" "$archive"
echo "$id" >"$stamp"
