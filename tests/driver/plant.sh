#!/bin/sh
# tests/driver/plant.sh [build folder] -- a wrong gradient rule must be noticed.
# Compiles the file of src/grad that knows QUERN_PLANT_GRAD with that flag, links it before the library into a driver in a
# temporary folder, and demands that modes grad, grad2 and jvp fail there.
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
flags="-std=c17 -D_POSIX_C_SOURCE=200809L -ffp-contract=off -O1 -Iinclude -Isrc -Itests"

planted=$(grep -l QUERN_PLANT_GRAD src/grad/*.c) || { echo "plant: no file of src/grad knows QUERN_PLANT_GRAD"; exit 1; }
for file in $planted; do
  # shellcheck disable=SC2086  # a list of words
  ${CC:-cc} $flags -DQUERN_NO_PLACE -DQUERN_PLANT_GRAD -c "$file" -o "$folder/$(basename "$file" .c).o"
done
# shellcheck disable=SC2086
${CC:-cc} $flags -o "$folder/querntest" tests/driver/*.c tests/probe/*.c "$folder"/*.o "$build/libquern_internal.a" -ljansson -lm -pthread

passed=0 failed=0
for mode in grad grad2 jvp; do
  if "$folder/querntest" --root . --mode $mode >"$folder/$mode.log" 2>&1; then
    echo "plant: mode $mode passes with a wrong rule" && failed=$((failed + 1))
  elif ! grep -q 'repro: querntest' "$folder/$mode.log"; then
    echo "plant: mode $mode fails without a repro line" && failed=$((failed + 1))
  else
    grep '^FAIL' "$folder/$mode.log" | head -n 1
    passed=$((passed + 1))
  fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
