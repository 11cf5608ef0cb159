#!/usr/bin/env bash
# Builds build/lib/libtokenizers.a: the crate tokenizer/jinja (chat templates) together with the
# Rust sources inside the Go module github.com/daulet/tokenizers, so that the archive and its Go
# package are of one version. It is one archive, because two would define Rust's std twice.
#
# The module takes tiktoken-rs from a git branch, which cannot be locked to a release; the build
# copy takes the released 0.9 instead, and leaves out the benchmarks' dependencies. Its functions lose
# their C linkage, all but the check of the version: tokenizer/jinja/src/tokens.rs exports the same
# names with a guard against panics and silent errors. A function that a new version adds is missing
# there, and linking says so. The crate's Cargo.lock pins everything; after a new module version,
# refresh it with
#   tokenizers.sh --update-lock
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
module=github.com/daulet/tokenizers
crate=$root/tokenizer/jinja
copy=$root/build/tokenizers
archive=$root/build/lib/libtokenizers.a
stamp=$copy/built

cd "$root"
go mod download "$module"
read -r version source < <(go list -m -f '{{.Version}} {{.Dir}}' "$module")

id="$version $(cat "$crate"/Cargo.* "$crate"/src/*.rs "$0" | sha256sum | cut -c1-16)"
if [ "${1:-}" != --update-lock ] && [ -f "$archive" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$id" ]; then
  touch "$archive" # newer than go.mod again, so that make does not ask a second time
  exit 0
fi

"$here/check-tools.sh" cargo cxx
mkdir -p "$copy" "$root/build/lib"
rm -rf "$copy/src"
cp -r "$source/src" "$copy/src"
chmod -R u+w "$copy/src" # the module cache is read-only
sed -i -e '/^#\[no_mangle\]$/{N;/fn tokenizers_version/!{s/^#\[no_mangle\]\n//;s/extern "C" fn/fn/;};}' \
  "$copy/src/lib.rs"
exported=$(grep -c -E '^#\[no_mangle\]|^pub extern "C" fn' "$copy/src/lib.rs")
if [ "$exported" != 2 ]; then # the attribute and the function of the version check
  echo "tokenizers.sh: $exported lines of $module $version still export C symbols, expected 2" >&2
  exit 1
fi
sed -e 's|^tiktoken-rs = .*|tiktoken-rs = "0.9"|' -e '/^\[dev-dependencies\]/,$d' \
  -e 's|crate-type = .*|crate-type = ["rlib"]|' "$source/Cargo.toml" >"$copy/Cargo.toml"

cd "$crate"
if [ "${1:-}" = --update-lock ]; then
  cargo update --workspace
  exit 0
fi

echo "tokenizers $version: cargo build (a few minutes, once)"
# budget.rs needs one unstable feature, the hook of failed allocations; it is allowed for our crate only.
# The crates that ours takes are compiled once for all clones.
target=${XDG_CACHE_HOME:-$HOME/.cache}/millrace/cargo
mkdir -p "$target"
exec 9>"$target/clone.lock"
! command -v flock >/dev/null || flock 9 # until its result is copied
RUSTC_BOOTSTRAP=millrace_text CARGO_TARGET_DIR=$target cargo build --release --locked
cp "$target/release/libmillrace_text.a" "$archive.new"
mv "$archive.new" "$archive"
# Go's build cache does not look into static libraries. A header that the package includes is part
# of its build input, so that a new archive is linked anew.
echo "#define MILLRACE_TEXT_ID \"$id\"" >"$crate/archive_id.h"
echo "$id" >"$stamp"
