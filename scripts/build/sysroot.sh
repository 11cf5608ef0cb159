#!/usr/bin/env bash
# Unpacks the C library of Debian 11, glibc 2.31, into build/sysroot, and prints that folder. Programs that are linked with it run on
# systems as old as Debian 11, Ubuntu 20.04 and RHEL 9. apt checks the signatures; this system's packages stay as they are.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
sysroot=$root/build/sysroot
if [ -f "$sysroot/complete" ]; then
  echo "$sysroot"
  exit 0
fi
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if ! command -v apt-get >/dev/null || [ ! -f "$keyring" ]; then
  echo "millrace: apt-get or $keyring is missing, expected both for the C library of Debian 11: apt install debian-archive-keyring, or set SYSROOT=none" >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/packages"
echo "deb [signed-by=$keyring] http://deb.debian.org/debian bullseye main" >"$work/sources.list"
apt=(apt-get -qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null
  -o "Dir::State::lists=$work/lists" -o Dir::State::status=/dev/null -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=)
"${apt[@]}" update >&2
(cd "$work/packages" && "${apt[@]}" download libc6 libc6-dev libgcc-10-dev >&2)

rm -rf "$sysroot"
mkdir -p "$sysroot"
for package in "$work"/packages/*.deb; do dpkg-deb -x "$package" "$sysroot"; done
# A link to an absolute path would lead to this system's library.
find "$sysroot" -type l | while read -r link; do
  target=$(readlink "$link")
  [[ $target != /* ]] || ln -sfn "$(realpath -m --relative-to="$(dirname "$link")" "$sysroot$target")" "$link"
done
touch "$sysroot/complete"
echo "$sysroot"
