#!/usr/bin/env bash
# Packages the Helm chart of a version, with the image of that version as its default: release-chart.sh IMAGE VERSION FOLDER.
# It needs helm.
set -euo pipefail
cd "$(dirname "$0")/.."

image=${1:?usage: release-chart.sh IMAGE VERSION FOLDER}
version=${2:?usage: release-chart.sh IMAGE VERSION FOLDER}
folder=${3:?usage: release-chart.sh IMAGE VERSION FOLDER}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -rL deploy/helm/millrace "$work/" # with millrace.conf in place of the link
sed -i "s|^image: millrace:[0-9.]* .*|image: $image:$version|" "$work/millrace/values.yaml"
grep -qxF "image: $image:$version" "$work/millrace/values.yaml"
helm lint "$work/millrace"
helm package "$work/millrace" --version "$version" --app-version "$version" --destination "$folder"
