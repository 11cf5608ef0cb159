#!/usr/bin/env bash
# Installs a wheel into a fresh environment, without a network, and answers with it: release-wheel-check.sh FILE.whl VERSION.
set -euo pipefail

wheel=$(realpath "${1:?usage: release-wheel-check.sh FILE.whl VERSION}")
version=${2:?usage: release-wheel-check.sh FILE.whl VERSION}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check --no-index "$wheel"
for millrace in "env/bin/millrace" "env/bin/python -m millrace"; do
  # shellcheck disable=SC2086 # a command and its arguments
  said=$(env -i HOME="$work" PATH=/usr/bin:/bin $millrace version)
  if [[ $said != "millrace $version (commit "* ]]; then
    echo "release-wheel-check.sh: found \"$said\" from $millrace, expected version $version" >&2
    exit 1
  fi
done
env -i HOME="$work" PATH=/usr/bin:/bin env/bin/python -m millrace generate --chat Hello --max-tokens 4 2>log >answer || {
  cat log >&2
  exit 1
}
if [ ! -s answer ]; then
  echo "release-wheel-check.sh: found an empty answer" >&2
  exit 1
fi
echo "$(basename "$wheel"): installed, answers"
