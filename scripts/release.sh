#!/usr/bin/env bash
# Makes the release files of the commit that is checked out, for this machine, in build/release, and checks them:
#   millrace-VERSION-linux-ARCH.tar.gz        the program, the documentation, example settings, licenses, the SBOM
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
rm -rf "${out:?}/$name"*
mkdir -p "$out/$name/bin" "$out/$name/sbom"

make build notices sbom VERSION="$version" GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"
cp bin/millrace "$out/$name/bin/"
cp build/THIRD_PARTY_NOTICES "$out/$name/"
cp build/sbom-go.json build/sbom-rust.json "$out/$name/sbom/"
git archive HEAD README.md CHANGELOG.md LICENSE SECURITY.md docs deploy | tar -x -C "$out/$name"

# The same files give the same archive: no order of a directory, no user, no time but the commit's.
tar --create --directory "$out" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" "$name" |
  gzip --no-name --best >"$out/$name.tar.gz"
for part in go rust; do cp "build/sbom-$part.json" "$out/$name.sbom-$part.json"; done
(cd "$out" && sha256sum "$name".tar.gz "$name".sbom-*.json >"$name.sha256")
rm -rf "${out:?}/$name"

scripts/release-check.sh "$out/$name.tar.gz" "$version" "$(git rev-parse --short=12 HEAD)"
