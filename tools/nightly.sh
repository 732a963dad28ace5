#!/bin/sh
# tools/nightly.sh BUILD -- what takes too long for every change: all networks for all GPU targets, many random ones, a hundred kills.
# Every step runs whatever fails; its output goes to BUILD/logs/nightly-<step>.log.
set -eu
cd "$(dirname "$0")/.."
build=$1
export QUERN_CACHE="$PWD/$build/cache"
mkdir -p "$build/logs"
failed=0
step() { # name command ...
  name=$1
  shift
  start=$(date +%s)
  rc=0
  "$@" >"$build/logs/nightly-$name.log" 2>&1 </dev/null || rc=$?
  if [ "$rc" != 0 ]; then
    failed=$((failed + 1))
    tail -n 30 "$build/logs/nightly-$name.log" | sed 's/^/  | /'
  fi
  printf '  %-8s %-16s %5d s  %s\n' "$([ "$rc" = 0 ] && echo ok || echo FAILED)" "$name" $(($(date +%s) - start)) \
    "$(tail -n 1 "$build/logs/nightly-$name.log")"
}

# Another day, other networks and graphs; SEED repeats those of a day.
seed=${SEED:-$(date +%Y%m%d)}
echo "nightly: SEED=$seed"
step nets-models "$build/quernnets" --models all
step nets-random "$build/quernnets" --random 400 --seed "$seed"
step nets-run "$build/quernnets" --run 2000 --seed "$seed"
step nets-run-models "$build/quernnets" --run-models all
step nets-run-cpu "$build/quernnets" --run 50 --seed "$seed" --device cpu
step kill tests/kill/run.sh "$build" 100 "$seed"
step property "$build/quernprop" --graphs 100000 --seed "$seed"
step property-interp "$build/quernprop" --device interp --graphs 100000 --seed "$seed"
if [ "$failed" != 0 ]; then echo "nightly: $failed steps failed"; fi
[ "$failed" = 0 ]
