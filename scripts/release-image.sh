#!/usr/bin/env bash
# Builds the container image of a version from the commit that is checked out, starts it, and pushes it:
# release-image.sh NAME VERSION. It needs docker, logged in to the registry.
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1:?usage: release-image.sh NAME VERSION}
version=${2:?usage: release-image.sh NAME VERSION}
commit=$(git rev-parse --short=12 HEAD)

docker build --target millrace --tag "$name:$version" --build-arg VERSION="$version" --build-arg COMMIT="$commit" .
said=$(docker run --rm "$name:$version" version)
if [[ $said != "millrace $version (commit $commit, "* ]]; then
  echo "release-image.sh: found \"$said\", expected version $version of commit $commit" >&2
  exit 1
fi
docker push "$name:$version"
