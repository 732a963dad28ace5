#!/bin/sh
# tools/examples.sh -- run every example program and show what it prints.
set -eu
cd "$(dirname "$0")/.."
for source in examples/*.c; do
  name=$(basename "$source" .c)
  printf '\n== %s: %s\n\n' "$source" "$(sed -n '1s/.*-- *//p' "$source")"
  "build/examples/$name"
done
