#!/usr/bin/env bash
# Checks a release archive: its sums, its files, its version, and that the unpacked program serves and stops.
# release-check.sh FILE.tar.gz VERSION COMMIT. The file's .sha256 is beside it.
set -euo pipefail

archive=$(realpath "$1")
version=$2
commit=$3
name=$(basename "$archive" .tar.gz)
http=127.0.0.1:${RELEASE_HTTP_PORT:-18091}
nats=127.0.0.1:${RELEASE_NATS_PORT:-14291}

work=$(mktemp -d)
server=
stop() {
  [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT

fail() {
  echo "release-check.sh: $*" >&2
  [ ! -s "$work/log" ] || cat "$work/log" >&2
  exit 1
}

(cd "$(dirname "$archive")" && sha256sum --check --quiet "$name.sha256") || fail "the sums differ"
tar -xzf "$archive" -C "$work"
cd "$work/$name"
for file in README.md CHANGELOG.md LICENSE SECURITY.md THIRD_PARTY_NOTICES sbom/sbom-go.json sbom/sbom-rust.json docs/api.md deploy/nats/millrace.conf \
  share/millrace/tiny-chat/model.safetensors share/man/man1/millrace-serve.1.gz share/bash-completion/completions/millrace \
  share/zsh/site-functions/_millrace share/fish/vendor_completions.d/millrace.fish lib/systemd/system/millrace.service; do
  [ -s "$file" ] || fail "found no $file in the archive"
done
stray=$(find . -name '*.go')
[ -z "$stray" ] || fail "found $stray in the archive, expected no sources"
size=$(stat -c %s bin/millrace)
[ "$size" -le 60000000 ] || fail "found a program of $size bytes, expected at most 60000000"
needed=$(LC_ALL=C objdump -p bin/millrace | awk '$1 == "NEEDED" { print $2 }')
foreign=$(grep -vE '^(libc|libm|libdl|libpthread|librt|libresolv|ld-linux.*)\.so' <<<"$needed" || true)
[ -z "$foreign" ] || fail "the program needs $foreign, expected the C library alone"
LC_ALL=C readelf -n bin/millrace | grep -q 'Build ID' || fail "found no build id in the program"

# As a user who has nothing else: no variables, no build folder, an empty home.
millrace() { env -i HOME="$work/home" PATH=/usr/bin:/bin bin/millrace "$@"; }
mkdir "$work/home"
said=$(millrace version)
[[ $said == "millrace $version (commit $commit, "* ]] || fail "found \"$said\", expected version $version of commit $commit"

env -i HOME="$work/home" PATH=/usr/bin:/bin bin/millrace serve --listen "$http" --nats-listen "$nats" --data-dir "$work/data" \
  --kv-memory 64MiB >"$work/log" 2>&1 &
server=$!
for _ in $(seq 300); do
  if curl -fsS -o /dev/null "http://$http/health/ready" 2>/dev/null; then break; fi
  kill -0 "$server" 2>/dev/null || fail "the server ended"
  sleep 0.2
done
answer=$(curl -fsS --max-time 60 "http://$http/v1/completions" -H 'Content-Type: application/json' \
  -d '{"model": "tiny-chat", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}') || fail "no answer"
[[ $answer == *'"completion_tokens":8'* ]] || fail "found $answer, expected 8 tokens"

kill -TERM "$server"
status=0
wait "$server" || status=$?
server=
[ "$status" = 0 ] || fail "found exit code $status after SIGTERM, expected 0"

# The oldest C library that the program runs on.
glibc=$(grep -aoE 'GLIBC_[0-9]+\.[0-9]+' bin/millrace | sort -uV | tail -n 1)
echo "$name: $(du -h "$archive" | cut -f 1), $size bytes of program; answers and stops; it needs ${glibc/_/ } or later"
