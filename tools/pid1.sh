#!/bin/bash
# tools/pid1.sh [KILLS] -- a training run that is process 1 of a namespace, as in a container, killed at random moments
# (100): each time the same command goes on, at the end it has the bits of a run that was never interrupted, and no
# temporary file is left. Needs root.
set -eu
cd "$(dirname "$0")/.."
kills=${1:-100} quern=$PWD/build/quern place=$PWD/build/pid1
export QUERN_CACHE=$PWD/build/cache
run=(train adder width=32 heads=1 batch=16 steps=1200 save_every=3 eval_every=100 eval_batches=1 threads=1 profile=2
  log_every=100)
rm -rf "$place"
mkdir -p "$place"
cd "$place"

# The run has ended: compares it with the one that was never interrupted.
check() {
  cmp run/step-00001200/model.safetensors whole/step-00001200/model.safetensors
  if ls -A run | grep -E '^\.|tmp$'; then
    echo "pid1: these are left"
    exit 1
  fi
  rm -rf run
}

"$quern" "${run[@]}" out=whole >log
for ((killed = 0, ended = 0; killed < kills;)); do
  unshare --pid --fork "$quern" "${run[@]}" out=run >log 2>&1 &
  outer=$!
  sleep "0.$((RANDOM % 6))$((RANDOM % 10))"
  inner=$(cat "/proc/$outer/task/$outer/children" 2>/dev/null || true)
  if [ -n "$inner" ]; then kill -9 $inner 2>/dev/null || true; fi
  if wait $outer; then
    ended=$((ended + 1))
    check
  elif grep '^quern: ' log | grep -v ': warning: '; then
    exit 1
  else
    killed=$((killed + 1))
  fi
done
"$quern" "${run[@]}" out=run >log
check
echo "pid1: $killed kills, $((ended + 1)) runs came to their end with the same bits"
