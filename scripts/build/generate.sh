#!/usr/bin/env bash
# Makes the generated Go code again (protobuf), with tools of pinned versions in build/generate.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
tools=$root/build/generate

if [ ! -x "$tools/bin/python" ]; then
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$here/protoc.txt"
fi
cd "$root"
CGO_LDFLAGS='' GOBIN=$tools/bin go install google.golang.org/protobuf/cmd/protoc-gen-go
PATH=$tools/bin:$PATH "$tools/bin/python" -m grpc_tools.protoc -I . \
  --go_out=. --go_opt=module=github.com/millrace/millrace \
  compute/sample/samplepb/params.proto compute/grammar/grammarpb/spec.proto actors/msg/messages.proto durable/callpb/call.proto
