#!/usr/bin/env bash
# Checks what golangci-lint does not: the format of the C++ sources, the shell scripts where shellcheck is installed,
# the workflows by the actionlint that $ACTIONLINT names, the titles of commits, the files that the kernels' README files name, and the
# English of all texts.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/build/check-tools.sh clang-format
mapfile -t sources < <(git ls-files '*.cpp' '*.hpp' '*.h')
if [ ${#sources[@]} -gt 0 ]; then clang-format --dry-run -Werror "${sources[@]}"; fi
echo "clang-format: ${#sources[@]} files"

mapfile -t scripts < <(git ls-files '*.sh' .ci/run)
if command -v shellcheck >/dev/null; then
  shellcheck "${scripts[@]}"
  echo "shellcheck: ${#scripts[@]} files"
else
  for script in "${scripts[@]}"; do bash -n "$script"; done
  echo "shellcheck is not installed: ${#scripts[@]} scripts parsed only"
fi

"${ACTIONLINT:?the path of actionlint, which make lint sets}" .github/workflows/*.yml
echo "actionlint: $(find .github/workflows -name '*.yml' | wc -l) workflows"

scripts/lint-titles.sh
scripts/lint-references.sh
go test -count 1 ./scripts/words
