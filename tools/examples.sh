#!/bin/sh
# tools/examples.sh [BUILD] -- build every example program and run it in an empty folder: on the CPU, on a card where
# there is one, one of them on OpenCL, and on a device that does not exist, which must be refused with a message.
set -eu
export LC_ALL=C
cd "$(dirname "$0")/.."
build=$PWD/${1:-build}
if [ $# = 0 ]; then tools/build.sh release examples >build/examples.log 2>&1 || { cat build/examples.log; exit 1; }; fi
export QUERN_CACHE="${QUERN_CACHE:-$build/cache}"
export POCL_CACHE_DIR="$QUERN_CACHE/pocl"
mkdir -p "$POCL_CACHE_DIR"
chmod 700 "$QUERN_CACHE"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0

count() { # status, what
  if [ "$1" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAILED: $2"; fi
}

run() { # name [argument ...]: in a folder that must be empty afterwards
  mkdir "$tmp/here"
  rc=0
  (cd "$tmp/here" && PATH="$build/examples:$PATH" exec "$@") || rc=$?
  count "$rc" "$* (exit status $rc)"
  rmdir "$tmp/here" 2>/dev/null || { count 1 "$* leaves files behind" && rm -rf "$tmp/here"; }
}

run_on() { # name device
  case $1 in # the path that a compiler gives a source may be relative
  gpt2_step) run "$1" "$2" "$PWD/examples/$1.c" ;;
  *) run "$1" "$2" ;;
  esac
}

"$build/quern" devices >"$tmp/devices"
for source in examples/*.c; do
  name=$(basename "$source" .c)
  printf '\n== %s: %s\n\n' "$source" "$(sed -n '1s/.*-- *//p' "$source")"
  if [ "$name" = eager ]; then # has no device to choose
    run "$name"
    continue
  fi
  run_on "$name" cpu
  if grep -q '^cuda .*compute capability' "$tmp/devices"; then run_on "$name" cuda; fi
  rc=0
  "$build/examples/$name" abacus "$source" >"$tmp/refused" 2>&1 || rc=$?
  grep -q abacus "$tmp/refused" || rc=0
  count "$((rc != 1))" "$name abacus (exit status $rc): $(cat "$tmp/refused")"
done
if grep -q '^opencl .*OpenCL [0-9]' "$tmp/devices"; then
  printf '\n== train_mlp on OpenCL\n\n'
  run train_mlp opencl
fi
printf '\n%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
