#!/usr/bin/env bash
# Builds the pages of api/web/page, with npm packages that are locked by hash (package-lock.json).
#   page.sh             into api/web/dist, which is committed
#   page.sh --install   installs the packages only
#   page.sh --check     fails if api/web/dist is not what a fresh build makes
set -euo pipefail

web=$(cd "$(dirname "$0")/../../api/web" && pwd)
page=$web/page
installed=$page/node_modules/.installed

found=$(node --version 2>/dev/null || echo none)
if ! node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || a == 20 && b >= 19 ? 0 : 1)' 2>/dev/null || ! command -v npm >/dev/null; then
  echo "millrace: found Node $found, expected 20.19 or later with npm: the pages need it, the program does not" >&2
  exit 1
fi
if ! cmp -s "$page/package-lock.json" "$installed"; then
  npm ci --prefix "$page" --ignore-scripts --no-audit --no-fund --loglevel error
  cp "$page/package-lock.json" "$installed"
fi
if [ "${1:-}" = --install ]; then exit 0; fi

cd "$page"
node_modules/.bin/tsc
if [ "${1:-}" != --check ]; then
  node_modules/.bin/vite build --logLevel warn
  exit 0
fi
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
node_modules/.bin/vite build --logLevel warn --emptyOutDir --outDir "$fresh"
if ! diff -rq "$fresh" "$web/dist"; then
  echo "millrace: api/web/dist is not what api/web/page makes: run make page, and commit it" >&2
  exit 1
fi
echo "page: api/web/dist is what a fresh build makes"
