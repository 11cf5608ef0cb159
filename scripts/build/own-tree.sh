#!/usr/bin/env bash
# Removes a CMake tree that was configured for another folder: own-tree.sh TREE SOURCES. A clone that was moved or copied has one, and
# CMake refuses it. The next configuration makes it again.
set -euo pipefail

tree=${1:?usage: own-tree.sh TREE SOURCES}
sources=${2:?usage: own-tree.sh TREE SOURCES}
[ -f "$tree/CMakeCache.txt" ] || exit 0

# entry NAME: what the cache has.
entry() { sed -n "s/^$1:INTERNAL=//p" "$tree/CMakeCache.txt"; }

# -ef: two names of one folder are the same.
if [ "$(entry CMAKE_CACHEFILE_DIR)" -ef "$tree" ] && [ "$(entry CMAKE_HOME_DIRECTORY)" -ef "$sources" ]; then exit 0; fi
echo "$tree: found the build of $(entry CMAKE_HOME_DIRECTORY), expected $sources: configuring anew" >&2
rm -rf "$tree"
