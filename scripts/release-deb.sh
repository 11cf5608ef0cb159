#!/usr/bin/env bash
# Makes a Debian package of an unpacked release: release-deb.sh TREE VERSION FILE.deb. TREE has bin, share and lib as scripts/release.sh
# makes them. The service is installed and not started: it would take a port and memory at once.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
tree=$(realpath "${1:?usage: release-deb.sh TREE VERSION FILE.deb}")
version=${2:?usage: release-deb.sh TREE VERSION FILE.deb}
file=${3:?usage: release-deb.sh TREE VERSION FILE.deb}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
package=$work/millrace
doc=$package/usr/share/doc/millrace
umask 022
install -d "$package/DEBIAN" "$package/usr" "$package/lib" "$package/etc/millrace" "$doc"
cp -r "$tree/bin" "$tree/share" "$package/usr/"
mv "$package/usr/share/zsh/site-functions" "$package/usr/share/zsh/vendor-completions"
cp -r "$tree/lib/systemd" "$package/lib/"
install -m 644 "$root/deploy/systemd/millrace.yaml" "$package/etc/millrace/millrace.yaml"
install -m 644 "$tree/README.md" "$tree/SECURITY.md" "$tree/THIRD_PARTY_NOTICES" "$doc/"
gzip --no-name --best -c "$tree/CHANGELOG.md" >"$doc/CHANGELOG.md.gz"
maintainer="Millrace authors <millrace@users.noreply.github.com>"
printf 'millrace (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- %s  %s\n' "$version" "$maintainer" \
  "$(LC_ALL=C date --utc --rfc-email --date="@${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}")" |
  gzip --no-name --best >"$doc/changelog.gz"
# A program that is not position-independent is faster and smaller; the others of Go are the same.
install -d "$package/usr/share/lintian/overrides"
echo "millrace: hardening-no-pie [usr/bin/millrace]" >"$package/usr/share/lintian/overrides/millrace"
cat >"$doc/copyright" <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Millrace
Source: https://github.com/millrace/millrace

Files: *
Copyright: 2026 the Millrace authors
License: Apache-2.0
 On Debian systems, the full text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0. Linked libraries have licenses of their
 own: /usr/share/doc/millrace/THIRD_PARTY_NOTICES.
END

# The newest symbol version that the program needs is the oldest C library that it runs with.
glibc=$(grep -aoE 'GLIBC_[0-9]+\.[0-9]+' "$package/usr/bin/millrace" | sort -uV | tail -n 1 | cut -d _ -f 2)
cat >"$package/DEBIAN/control" <<END
Package: millrace
Version: $version
Section: net
Priority: optional
Architecture: $(dpkg --print-architecture)
Maintainer: $maintainer
Installed-Size: $(du -sk "$package" | cut -f 1)
Depends: libc6 (>= $glibc)
Recommends: ca-certificates
Homepage: https://github.com/millrace/millrace
Description: LLM server with OpenAI-style HTTP and NATS interfaces
 Millrace serves large language models with an OpenAI-style HTTP API and the
 same API over NATS. It is one program: a pipeline of actors around fused
 kernels for x86-64 and arm64 processors. A small demo model is included.
END
echo /etc/millrace/millrace.yaml >"$package/DEBIAN/conffiles"

cat >"$package/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  # A running service gets the new program; one that is stopped stays stopped.
  if [ "$1" = configure ] && [ -n "$2" ]; then systemctl try-restart millrace.service || true; fi
fi
END
cat >"$package/DEBIAN/prerm" <<'END'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  deb-systemd-invoke stop millrace.service || true
fi
END
cat >"$package/DEBIAN/postrm" <<'END'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
if [ "$1" = remove ]; then deb-systemd-helper disable millrace.service >/dev/null 2>&1 || true; fi
if [ "$1" = purge ]; then
  deb-systemd-helper purge millrace.service >/dev/null 2>&1 || true
  # The state of the service. systemd keeps that of a dynamic user in private.
  rm -rf /var/lib/private/millrace /var/lib/millrace
fi
END
chmod 755 "$package"/DEBIAN/{postinst,prerm,postrm}
(cd "$package" && find usr lib -type f -print0 | sort -z | xargs -0 md5sum) >"$package/DEBIAN/md5sums"
dpkg-deb --root-owner-group -Zxz --build "$package" "$file" >/dev/null
