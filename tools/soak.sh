#!/bin/sh
# tools/soak.sh <seconds> -- property tests with ever new seeds under the address sanitizer for that long, then fuzzing
# each target for that long. Prints the seed of every round; stops at the first failure.
set -eu
cd "$(dirname "$0")/.."
seconds=$1
export QUERN_CACHE=$PWD/build/asan/cache
tools/build.sh asan
end=$(($(date +%s) + seconds))
while [ "$(date +%s)" -lt $end ]; do
  seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
  echo "soak: build/asan/quernprop --graphs 1000 --seed $seed"
  build/asan/quernprop --graphs 1000 --seed "$seed"
done
exec tools/fuzz.sh "$seconds"
