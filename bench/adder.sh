#!/bin/sh
# bench/adder.sh [seed ...] -- training works: three-digit addition in f32, bf16 and f16, each to at least 99 % exact answers on pairs
# that were held out. About a minute a run on two cores. Needs `make`.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- 0
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
for seed; do
  for precision in f32 bf16 f16; do
    build/quern train adder precision="$precision" seed="$seed" out="$out/$precision-$seed" report=false >"$out/log" || {
      tail -n 5 "$out/log"
      exit 1
    }
    right=$(sed -n 's/^eval .*| \([0-9.]*\)% right.*/\1/p' "$out/log" | tail -n 1)
    echo "adder seed $seed $precision: $right% exact"
    awk -v right="$right" 'BEGIN { exit !(right >= 99) }' || failed=1
  done
done
exit $failed
