#!/usr/bin/env bash
# Tries a .deb as root in a clean system of Debian's packages, a folder that mmdebstrap made:
#   mmdebstrap --variant=essential --include=ca-certificates bullseye FOLDER
#   release-clean-root.sh FOLDER FILE.deb
# It installs the package, streams an answer as user 10001 with HOME=/, removes the package, and purges it. The time that counts is
# printed: from nothing to an answer.
set -euo pipefail

root=$(realpath "${1:?usage: release-clean-root.sh FOLDER FILE.deb}")
deb=$(realpath "${2:?usage: release-clean-root.sh FOLDER FILE.deb}")
http=127.0.0.1:${RELEASE_HTTP_PORT:-18093}
nats=127.0.0.1:${RELEASE_NATS_PORT:-14293}
server=
stop() { [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true; }
trap stop EXIT
fail() {
  echo "release-clean-root.sh: $*" >&2
  [ ! -s "$root/tmp/log" ] || cat "$root/tmp/log" >&2
  exit 1
}

begin=$(date +%s)
cp "$deb" "$root/tmp/millrace.deb"
chroot "$root" dpkg --install /tmp/millrace.deb >"$root/tmp/dpkg.log" 2>&1 || fail "not installed: $(cat "$root/tmp/dpkg.log")"
for tool in go g++ cmake cargo; do
  if chroot "$root" sh -c "command -v $tool" >/dev/null; then fail "found $tool, expected a clean system"; fi
done
install -d -o 10001 -g 10001 "$root/tmp/data"
chroot --userspec=10001:10001 "$root" /usr/bin/env -i HOME=/ PATH=/usr/bin:/bin /usr/bin/millrace serve \
  --listen "$http" --nats-listen "$nats" --data-dir /tmp/data --kv-memory 64MiB >"$root/tmp/log" 2>&1 &
server=$!
for _ in $(seq 300); do
  if curl -fsS -o /dev/null "http://$http/health/ready" 2>/dev/null; then break; fi
  kill -0 "$server" 2>/dev/null || fail "the server ended"
  sleep 0.2
done
answer=$(curl -fsSN --max-time 60 "http://$http/v1/completions" -H 'Content-Type: application/json' \
  -d '{"model": "tiny-chat", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "stream": true}') || fail "no answer"
[[ $answer == *'data: [DONE]'* ]] || fail "found $answer, expected a stream that ends"
took=$(($(date +%s) - begin))
kill -TERM "$server"
wait "$server" || fail "found exit code $? after SIGTERM, expected 0"
server=

echo '# changed' >>"$root/etc/millrace/millrace.yaml"
chroot "$root" dpkg --remove millrace >/dev/null || fail "not removed"
[ ! -e "$root/usr/bin/millrace" ] || fail "found the program after dpkg --remove"
[ -e "$root/etc/millrace/millrace.yaml" ] || fail "found no settings after dpkg --remove, expected them until --purge"
chroot "$root" dpkg --purge millrace >/dev/null || fail "not purged"
[ ! -e "$root/etc/millrace" ] || fail "found settings after dpkg --purge"
[ "$took" -le 60 ] || fail "found $took s from nothing to an answer, expected at most 60"
echo "$(basename "$deb"): installed, a streamed answer after $took s, removed, purged"
