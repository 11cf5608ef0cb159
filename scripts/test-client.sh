#!/usr/bin/env bash
# Builds package client and the Go examples as a program of another module does: without cgo, from an empty module
# cache. The modules come from this machine's module cache where it has them, through GOPROXY otherwise.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

GOPROXY="file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)"
unset CGO_LDFLAGS
export GOPROXY GOMODCACHE=$work/cache GOFLAGS="-mod=mod -modcacherw" GOWORK=off CGO_ENABLED=0

mkdir "$work/program"
cd "$work/program"
cp -r "$root/examples/go/." .
cp "$root/go.sum" . # the checksums of this repository
go mod init example.com/program
go mod edit -go "$(cd "$root" && go mod edit -json | sed -n 's/^\t"Go": "\(.*\)",$/\1/p')" \
  -require github.com/millrace/millrace@v0.0.0 -replace "github.com/millrace/millrace=$root"
go build ./...

ours=$(go list -deps ./... | grep '^github.com/millrace/' || true)
if [ "$ours" != github.com/millrace/millrace/client ]; then
  echo "test-client: the examples import these packages of the repository, expected client alone:" >&2
  echo "$ours" >&2
  exit 1
fi
echo "test-client: client and the examples build without cgo; modules:"
go list -deps -f '{{with .Module}}{{if .Version}}{{.Path}} {{.Version}}{{end}}{{end}}' ./... | grep -v '^github.com/millrace/' | sort -u
