#!/bin/sh
# tools/fmt.sh [--check] -- format the C sources, or say which are not formatted. Tables (*.def) are lined up by hand.
set -eu
cd "$(dirname "$0")/.."
if [ "${1-}" = --check ]; then set -- --dry-run -Werror --ferror-limit=1; else set -- -i; fi
for folder in include src cli tests examples; do
  [ ! -d "$folder" ] || find "$folder" -name '*.[ch]' -print0
done | sort -z | xargs -0 clang-format "$@"
