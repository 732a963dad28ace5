#!/bin/sh
# tests/driver/plant_ulp.sh [build folder] -- a kernel that became less accurate must be noticed.
# Changes a digit of a coefficient of sin in src/kern/math_f32.c, which makes it wrong by some units in the last place, links that file
# before the library into a driver in a temporary folder, and demands that mode ulp fails there for sin, and passes for exp.
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
flags="-std=c17 -D_POSIX_C_SOURCE=200809L -ffp-contract=off -O1 -Iinclude -Isrc -Itests"

sed 's/-0x1\.9987ccp-13/-0x1.9a87ccp-13/' src/kern/math_f32.c >"$folder/math_f32.c"
! cmp -s src/kern/math_f32.c "$folder/math_f32.c" || { echo "plant: src/kern/math_f32.c has another coefficient"; exit 1; }
# shellcheck disable=SC2086  # a list of words
${CC:-cc} $flags -DQUERN_NO_PLACE -c "$folder/math_f32.c" -o "$folder/math_f32.o"
# shellcheck disable=SC2086
${CC:-cc} $flags -o "$folder/querntest" tests/driver/*.c tests/probe/*.c "$folder"/*.o "$build/libquern_internal.a" -ljansson -lm -pthread

passed=0 failed=0
ulp() { "$folder/querntest" --root . --mode ulp --dtype f32 --op "$1" >"$folder/$1.log" 2>&1; }
if ulp sin; then
  echo "plant: mode ulp passes with a wrong coefficient" && failed=$((failed + 1))
elif ! grep -q 'repro: querntest' "$folder/sin.log"; then
  echo "plant: mode ulp fails without a repro line" && failed=$((failed + 1))
else
  grep 'FAIL' "$folder/sin.log" | head -n 1
  passed=$((passed + 1))
fi
if ulp exp; then
  passed=$((passed + 1))
else
  cat "$folder/exp.log" && failed=$((failed + 1))
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
