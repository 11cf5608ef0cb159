#!/usr/bin/env bash
# Fills a folder like /usr with what a package has beside bin/millrace, which is there already: release-share.sh FOLDER.
#   share/millrace/tiny-chat                      the demo model
#   share/man/man1                                manual pages, one for each command
#   share/bash-completion, share/zsh, share/fish  completions
#   lib/systemd/system/millrace.service           a service of its own user
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
tree=$(realpath "${1:?usage: release-share.sh FOLDER}")
millrace=$tree/bin/millrace

install -d "$tree/share/millrace/tiny-chat" "$tree/share/man/man1" "$tree/share/bash-completion/completions" \
  "$tree/share/zsh/site-functions" "$tree/share/fish/vendor_completions.d" "$tree/lib/systemd/system"
for file in config.json generation_config.json model.safetensors special_tokens_map.json tokenizer.json tokenizer_config.json; do
  install -m 644 "$root/models/tiny-chat/$file" "$tree/share/millrace/tiny-chat/"
done
"$millrace" man "$tree/share/man/man1"
gzip --no-name --best --force "$tree"/share/man/man1/*.1
"$millrace" completion bash >"$tree/share/bash-completion/completions/millrace"
"$millrace" completion zsh >"$tree/share/zsh/site-functions/_millrace"
"$millrace" completion fish >"$tree/share/fish/vendor_completions.d/millrace.fish"
install -m 644 "$root/deploy/systemd/millrace.service" "$tree/lib/systemd/system/"
