#!/bin/sh
# tools/fuzz.sh [--built] <seconds> [target ...] -- run each fuzz target that long, from tests/fuzz/corpus/<target>/. They are built with
# the address sanitizer's tests; --built: they are there.
# New inputs go to build/fuzz/corpus/<target>/, findings to build/fuzz/findings/. A dictionary tests/fuzz/<target>.dict
# is used when there is one.
set -eu
cd "$(dirname "$0")/.."
if [ "$1" = --built ]; then shift; else tools/build.sh asan fuzz; fi
seconds=$1
shift
[ $# != 0 ] || set -- tests/fuzz/fuzz_*.c
mkdir -p build/fuzz/findings
passed=0 failed=0
for target in "$@"; do
  name=$(basename "$target" .c)
  grown=build/fuzz/corpus/$name
  mkdir -p "$grown"
  echo "fuzz: $name for $seconds s"
  corpus=tests/fuzz/corpus/$name
  [ -d "$corpus" ] || { echo "fuzz: no seeds: $corpus is missing"; failed=$((failed + 1)); continue; }
  dict=tests/fuzz/$name.dict
  [ -e "$dict" ] || dict=
  if "build/asan/fuzz/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix=build/fuzz/findings/"$name"- ${dict:+-dict="$dict"} "$grown" "$corpus" >"build/fuzz/$name.log" 2>&1; then
    passed=$((passed + 1))
    grep -E 'number_of_executed_units|new_units_added' "build/fuzz/$name.log"
  else
    failed=$((failed + 1))
    tail -n 40 "build/fuzz/$name.log"
    echo "fuzz: $name: a finding; run  build/asan/fuzz/$name build/fuzz/findings/$name-*"
  fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
