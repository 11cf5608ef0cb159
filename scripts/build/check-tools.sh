#!/usr/bin/env bash
# Checks that the named tools are here and new enough: check-tools.sh go cxx cmake cargo git.
# Prints one line per tool that is missing, with what to install, and fails.
set -euo pipefail

missing=0

# at_least FOUND WANTED: true when version FOUND is WANTED or later.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# require NAME WANTED FOUND HINT: FOUND is empty when the tool is absent.
require() {
  if [ -z "$3" ]; then
    echo "millrace: $1 is missing: install $1 >= $2 ($4)" >&2
    missing=1
  elif ! at_least "$3" "$2"; then
    echo "millrace: $1 $3 is too old: install $1 >= $2 ($4)" >&2
    missing=1
  fi
}

# version COMMAND...: the first dotted number that the command prints.
version() { "$@" 2>/dev/null | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1 || true; }

for tool in "$@"; do
  case "$tool" in
    # GOTOOLCHAIN=local: the one installed, not one that go would fetch for us.
    go) require go 1.26 "$(GOTOOLCHAIN=local version go version)" "https://go.dev/dl" ;;
    cxx) require "${CXX:-g++}" 11.0 "$(version "${CXX:-g++}" -dumpfullversion -dumpversion)" "apt install g++" ;;
    cmake) require cmake 3.22 "$(version cmake --version)" "apt install cmake" ;;
    cargo) require cargo 1.85 "$(version cargo --version)" "https://rustup.rs" ;;
    git) require git 2.0 "$(version git --version)" "apt install git" ;;
    clang-format) require clang-format 14.0 "$(version clang-format --version)" "apt install clang-format" ;;
    gtest)
      if ! printf '#include <gtest/gtest.h>\n' | "${CXX:-g++}" -x c++ -std=c++20 -E - >/dev/null 2>&1; then
        echo "millrace: GoogleTest is missing: install it (apt install libgtest-dev)" >&2
        missing=1
      fi
      ;;
    *)
      echo "check-tools: unknown tool $tool" >&2
      exit 2
      ;;
  esac
done
exit "$missing"
