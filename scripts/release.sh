#!/usr/bin/env bash
# Makes the release files of the commit that is checked out, for this machine, in build/release, and checks them:
#   millrace-VERSION-linux-ARCH.tar.gz        the program, the demo model, the documentation, example settings, licenses, the SBOM
#   millrace_VERSION_ARCH.deb                 the same as a Debian package, with a service
#   millrace-VERSION-py3-none-PLATFORM.whl    the program and the demo model as a Python package
#   millrace-VERSION-linux-ARCH.sbom-*.json   the SBOM: what the program is made of, as CycloneDX, for Go and for Rust
#   millrace-VERSION-linux-ARCH.sha256        their SHA-256 sums, for sha256sum -c
# release.sh [VERSION]. Without VERSION it is the newest one in CHANGELOG.md.
set -euo pipefail
cd "$(dirname "$0")/.."

newest() { grep -oE '^## \[[0-9]+\.[0-9]+\.[0-9]+\]' CHANGELOG.md | head -n 1 | tr -d '#[] '; }

version=${1:-$(newest)}
if ! grep -qF "## [$version]" CHANGELOG.md; then
  echo "release.sh: CHANGELOG.md has no section for version $version" >&2
  exit 1
fi
if [ -n "$(git status --porcelain)" ]; then
  echo "release.sh: the working tree has changes; a release is a commit:" >&2
  git status --short >&2
  exit 1
fi

arch=$(go env GOARCH)
name=millrace-$version-linux-$arch
out=build/release
deb=millrace_${version}_$arch.deb
rm -rf "${out:?}/$name"* "${out:?}/$deb" "${out:?}/millrace-$version"-*.whl
mkdir -p "$out/$name/bin" "$out/$name/sbom"

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) # the date of manual pages
export SOURCE_DATE_EPOCH
make libs notices sbom VERSION="$version"
scripts/release-build.sh "$out/$name/bin/millrace" "$version"
scripts/release-share.sh "$out/$name"
cp build/THIRD_PARTY_NOTICES "$out/$name/"
cat >>"$out/$name/THIRD_PARTY_NOTICES" <<'END'

================================================================================
GCC libstdc++, libgcc
License: GPL-3.0-or-later WITH GCC-exception-3.1 (https://www.gnu.org/licenses/gcc-exception-3.1.html)

================================================================================
GNU C Library: the parts that its development package links statically
License: LGPL-2.1-or-later, with the exception for such parts (https://sourceware.org/glibc/)
END
cp build/sbom-go.json build/sbom-rust.json "$out/$name/sbom/"
git archive HEAD README.md CHANGELOG.md LICENSE SECURITY.md docs deploy | tar -x -C "$out/$name"
find "$out/$name/docs" "$out/$name/deploy" -name '*.go' -delete # tests of this repository
rm -r "${out:?}/$name/deploy/helm/test"

# The same files give the same archive: no order of a directory, no user, no time but the commit's.
tar --create --directory "$out" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" "$name" |
  gzip --no-name --best >"$out/$name.tar.gz"
for part in go rust; do cp "build/sbom-$part.json" "$out/$name.sbom-$part.json"; done
scripts/release-deb.sh "$out/$name" "$version" "$out/$deb"
wheel=$(basename "$(python3 scripts/release-wheel.py "$out/$name" "$version" "$out")")
(cd "$out" && sha256sum "$name".tar.gz "$name".sbom-*.json "$deb" "$wheel" >"$name.sha256")
rm -rf "${out:?}/$name"

scripts/release-check.sh "$out/$name.tar.gz" "$version" "$(git rev-parse --short=12 HEAD)"
scripts/release-wheel-check.sh "$out/$wheel" "$version"
